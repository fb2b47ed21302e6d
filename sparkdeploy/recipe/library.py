"""Where recipes are looked up, and what they inherit, before anything is held against the format.

A search reads hundreds of them, so nothing here loads the rules, the releases or the families.
"""

import difflib
import functools
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy import folders
from sparkdeploy.errors import RecipeError, UnknownRecipeError, UsageError
from sparkdeploy.recipe.document import (
    Document,
    KeyPath,
    ValueOrigin,
    is_foreign,
    merge,
    read_document,
)
from sparkdeploy.recipe.image_pins import ImageLock
from sparkdeploy.recipe.paths import anchored
from sparkdeploy.recipe.sources import Sources
from sparkdeploy.recipe.words import closest
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import visible_line

MAX_ANCESTORS = 16
NEAR = 0.8
"""How alike a suggested name is to what was typed: names of other models look alike, too."""
NO_SUCH_RECIPE = (
    "`sparkdeploy list` shows all; `sparkdeploy new NAME --model ORG/NAME` writes one for a model"
)
NOT_INHERITED = ("name", "title", "source", "preview", "extends", "expect")
"""Keys that describe one recipe and mean nothing in its children."""


@dataclass(frozen=True, slots=True)
class Library:
    """The folders in which recipes are looked up, the user's before the shipped ones.

    What they hold is trusted.
    """

    folders: tuple[Path, ...]
    images: ImageLock | None = None
    """What tags were pinned to; None where recipes are only looked at."""
    sources: Sources | None = None
    consents: Path | None = None

    def recipe_files(self) -> dict[str, Path]:
        return self._files("")

    def own_names(self) -> frozenset[str]:
        """Return the names of recipes that lie in another folder than the last, the shipped one."""
        return frozenset(it.stem for folder in self.folders[:-1] for it in _yaml_files(folder))

    def engine_files(self) -> dict[str, Path]:
        return self._files("engines")

    def foreign_files(self, origins: Mapping[KeyPath, ValueOrigin]) -> frozenset[str]:
        """Return which of the files that values stand in lay elsewhere when they were read."""
        own = [folder.resolve() for folder in self.folders]
        read = {
            (it.file, it.read and it.read.place) for it in origins.values() if it.line is not None
        }
        return frozenset(
            file for file, place in read if not (place and any(map(place.is_relative_to, own)))
        )

    def _files(self, below: str) -> dict[str, Path]:
        # The first folder that has a name wins.
        folders = [folder / below for folder in reversed(self.folders)]
        return {path.stem: path for folder in folders for path in _yaml_files(folder)}


def _yaml_files(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - a path for each is slow, and most commands ask
    except OSError:
        return []
    return [folder / name for name in names if name.endswith(".yaml")]


def recipe_folders(settings: Settings) -> tuple[Path, ...]:
    return folders.recipe_folders(settings.config_dir)


def library(settings: Settings) -> Library:
    from sparkdeploy.recipe.image_pins import ImageLock  # noqa: PLC0415 - a search needs none

    state = settings.state_dir
    folders = recipe_folders(settings)
    return Library(folders, ImageLock(state), Sources.below(state), state / "consents")


def locate(library: Library, wanted: str) -> Path:
    """Return a recipe's file by SOURCE/RECIPE, path or name."""
    if found := of_source(library, wanted):
        return found
    if is_path(wanted):
        # Neither raises for a home of nobody or a name that is too long for any file.
        path = Path(os.path.expanduser(wanted))  # noqa: PTH111
        if os.path.exists(path):  # noqa: PTH110
            return path
        raise UsageError(f"there is no recipe file {visible_line(wanted)}", hint=_no_source(wanted))
    return known_file(library.recipe_files(), wanted, "recipe")


def default_recipe(settings: Settings) -> str:
    """Return what counts where no recipe is named; RecipeError says where a wrong one is set."""
    try:
        locate(library(settings), settings.default_recipe)
    except (RecipeError, UsageError) as error:
        where = f"default_recipe in {settings.sources['default_recipe']}"
        raise RecipeError(f"{where}: {error.message}", hint=error.hint) from error
    return settings.default_recipe


def wrong_settings(settings: Settings) -> dict[str, str]:
    """Return what is wrong with settings that name a recipe, an engine or a file, by name."""
    wrong, engines = {}, library(settings).engine_files()
    try:
        default_recipe(settings)
    except RecipeError as error:
        wrong["default_recipe"] = error.message.partition(": ")[2]
    if settings.rehearsal_engine and settings.rehearsal_engine not in engines:
        wrong["rehearsal_engine"] = f"there is no such engine; {closest('', engines)}"
    if (bundle := settings.build.ca_bundle) is not None and not bundle.is_file():
        wrong["ca_bundle"] = "there is no such file"
    return wrong


def is_path(wanted: str) -> bool:
    """Say whether a word for a recipe means a file, unless a source has such a recipe."""
    return wanted.endswith((".yaml", ".yml")) or "/" in wanted


def of_source(library: Library, wanted: str) -> Path | None:
    """Return the file that SOURCE/RECIPE means; None for words that mean a file or a name."""
    if library.sources is None:
        return None
    is_file = os.path.isfile(wanted)  # noqa: PTH113 - never raises
    try:
        found = library.sources.recipe_file(wanted)
    except RecipeError as error:
        if is_file:
            return None
        if os.path.isfile(f"{wanted}.yaml"):  # noqa: PTH113 - as above
            hint = f"for the file write {shlex.quote(f'./{wanted}.yaml')}"
            raise RecipeError(error.message, hint=hint) from error
        raise
    if found is not None and is_file:
        _say_both(wanted)
    return found


@functools.cache
def _say_both(wanted: str) -> None:
    """Once: some commands look a recipe up more than once."""
    path = shlex.quote(f"./{wanted}")
    console.warn(f"{visible_line(wanted)} is of a source, and a file; write {path} for the file")


def _no_source(wanted: str) -> str | None:
    """SOURCE/RECIPE of a source that nobody added looks like a path."""
    name, _, rest = wanted.partition("/")
    is_path = wanted.endswith((".yaml", ".yml")) or name in ("", ".", "..", "~")
    if is_path or not rest:
        return None
    model = shlex.quote(visible_line(wanted))
    add = shlex.join(["sparkdeploy", "recipe", "source", "add", visible_line(name), "GIT_URL"])
    return f"a model of the hub: sparkdeploy new NAME --model {model}; a recipe of a source: {add}"


def known_file(files: Mapping[str, Path], name: str, what: str) -> Path:
    if name not in files and what == "recipe":
        near = difflib.get_close_matches(name.lower(), list(files), n=3, cutoff=NEAR)
        begun = [it for it in files if it.startswith(name)][:3]
        meant = f"did you mean {' or '.join(near or begun)}?" if near or begun else ""
        error = UnknownRecipeError(
            f"there is no recipe {visible_line(name)}", hint=meant or NO_SUCH_RECIPE
        )
        error.name = name
        raise error
    if name not in files:
        raise RecipeError(f"there is no {what} {visible_line(name)}", hint=closest(name, files))
    return files[name]


def resolve_inheritance(
    library: Library, document: Document, path: Path, chain: Sequence[Path]
) -> Document:
    """Return what was read at `path` over all that it extends; RecipeError for a circle."""
    if path.resolve() in chain:
        names = " -> ".join(item.stem for item in (*chain, path))
        raise RecipeError(f"{path} extends itself: {names}")
    if len(chain) > MAX_ANCESTORS:
        raise RecipeError(f"{path} has more than {MAX_ANCESTORS} recipes that extend one another")
    if is_foreign(document):
        from sparkdeploy.recipe.foreign.translate import translate  # noqa: PLC0415 - as above

        document = translate(document, path)[0].document
    document = anchored(document, path.parent)
    parent = document.content.get("extends")
    if not isinstance(parent, str):
        return document
    parent_path = _locate_parent(library, parent, path)
    inherited = resolve_inheritance(
        library, read_document(parent_path), parent_path, (*chain, path.resolve())
    )
    kept = replace(
        inherited,
        content={key: it for key, it in inherited.content.items() if key not in NOT_INHERITED},
        origins={
            path: at for path, at in inherited.origins.items() if path[0] not in NOT_INHERITED
        },
    )
    return merge(kept, document)


def parent_beside(child: Path, parent: str, sources: Sources | None) -> Path | None:
    """Return the file that `extends` means by its place; None where it means a library's recipe."""
    named = os.path.expanduser(parent)  # noqa: PTH111 - never raises
    beside = child.parent / (named if named.endswith((".yaml", ".yml")) else f"{named}.yaml")
    top = sources.top_of(child) if sources is not None else None
    if top is not None and not Path(os.path.realpath(beside)).is_relative_to(top):
        raise RecipeError(
            f"{child} extends {visible_line(parent)}, which is no file of its source",
            hint="a source's recipe extends files of its own source, and shipped ones by name",
        )
    if not os.path.isfile(beside) or os.path.samefile(beside, child):  # noqa: PTH113, PTH121
        return None
    return beside


def _locate_parent(library: Library, parent: str, child: Path) -> Path:
    """A path is relative to the file that names it, whatever lies where the command is run."""
    if beside := parent_beside(child, parent, library.sources):
        return beside
    # A user's `v2.yaml` that extends `v2` means the shipped one, not itself.
    others = [folder for folder in library.folders if folder.resolve() != child.parent.resolve()]
    try:
        return known_file(Library(tuple(others)).recipe_files(), parent, "recipe")
    except RecipeError as error:
        raise RecipeError(
            f"{child} extends {visible_line(parent)}: {error.message}",
            hint=f"no such file lies at that path from {child.parent}"
            if is_path(parent)
            else error.hint,
        ) from error
