"""Find recipes and engines, resolve what they inherit, and report all mistakes at once."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe import rules
from sparkdeploy.recipe.arguments import argument_mistakes
from sparkdeploy.recipe.document import (
    Document,
    KeyPath,
    ValueOrigin,
    merge,
    read_document,
    with_setting,
    written_part,
)
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.foreign.theirs import is_foreign
from sparkdeploy.recipe.foreign.translate import translate
from sparkdeploy.recipe.harmless import shown
from sparkdeploy.recipe.mods import FoundMod, find_mods
from sparkdeploy.recipe.packages import package_mistakes
from sparkdeploy.recipe.paths import anchored
from sparkdeploy.recipe.release import stated_release
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.recipe.settled import ImageLock, settled_engine
from sparkdeploy.recipe.sources.shelf import Sources
from sparkdeploy.recipe.unsafe import Judge, consent_hint
from sparkdeploy.recipe.validate import validated
from sparkdeploy.recipe.words import closest
from sparkdeploy.settings import RECIPES_VARIABLE, resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.recipe.foreign.translate import Translation
    from sparkdeploy.settings import Settings

T = TypeVar("T", Recipe, Engine)
MAX_ANCESTORS = 16
MAX_LISTED = 100
OUR_SIGNS = frozenset({"schema", "extends", "engine", "model", "serve"})
"""Keys that our own recipes have, one at least."""
NOT_INHERITED = ("name", "title", "source", "preview", "extends", "expect")
"""Keys that describe one recipe and mean nothing in its children."""


@dataclass(frozen=True, slots=True)
class Library:
    """The folders in which recipes are looked up, the user's before the shipped ones.

    What they hold is trusted. A recipe from elsewhere may name what lies in `model_folders`.
    """

    folders: tuple[Path, ...]
    model_folders: tuple[Path, ...] = ()
    images: ImageLock | None = None
    """What tags were settled to; nobody asks for it where recipes are only looked at."""
    sources: Sources | None = None

    def recipe_files(self) -> dict[str, Path]:
        return self._files("*.yaml")

    def engine_files(self) -> dict[str, Path]:
        return self._files("engines/*.yaml")

    def foreign_files(self, origins: Mapping[KeyPath, ValueOrigin]) -> frozenset[str]:
        """Return which of the files that values stand in lie elsewhere, links followed."""
        own = [folder.resolve() for folder in self.folders]
        files = {origin.file for origin in origins.values() if origin.line is not None}
        return frozenset(
            file
            for file in files
            if not any(Path(file).resolve().is_relative_to(folder) for folder in own)
        )

    def _files(self, pattern: str) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:  # the first that has a name wins
            for path in sorted(folder.glob(pattern)):
                found.setdefault(path.stem, path)
        return found


def recipe_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the trusted folders: what --on sent here, the user's own, the shipped ones."""
    sent = os.environ.get(RECIPES_VARIABLE)
    own = (settings.config_dir / "recipes", resources() / "recipes")
    return (Path(sent), *own) if sent else own


def library(settings: Settings) -> Library:
    models = (settings.hub_cache, settings.data_dir)
    state = settings.state_dir
    return Library(recipe_folders(settings), models, ImageLock(state), Sources.below(state))


@dataclass(frozen=True, slots=True)
class Resolved:
    recipe: Recipe
    engine: Engine
    origins: Mapping[KeyPath, ValueOrigin]
    warnings: tuple[str, ...] = ()
    """What the engine's vLLM may refuse; nobody asked its own parser."""
    translation: Translation | None = None
    """What became of each line of a recipe in a format of others."""
    wanted: str = ""
    """The name or path under which it was loaded."""
    mods: tuple[FoundMod, ...] = ()
    image: str | None = None
    """Of an engine of kind `image`: what the recipe or the engine's file calls it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A recipe as far as it could be read: what it is, and what stands in its way."""

    wanted: str
    document: Document
    recipe: Recipe | None
    engine: Engine | None
    mistakes: tuple[Mistake, ...]
    consents: tuple[Mistake, ...]
    """What the user has to agree to."""
    warnings: tuple[str, ...] = ()
    translation: Translation | None = None
    mods: tuple[FoundMod, ...] = ()
    image: str | None = None

    def lines(self, found: Iterable[Mistake]) -> list[str]:
        """Return mistakes or consents in words, each with its file and line."""
        return [_line(self.document, item) for item in dict.fromkeys(found)]


def load_recipe(library: Library, wanted: str, settings: Iterable[str] = ()) -> Resolved:
    """Load a recipe by name or path; RecipeError lists every mistake with file, line and fix.

    A recipe in a format of others is translated; what is set may be one of its own parameters.
    """
    loaded = look_into(library, wanted, settings)
    mistakes, consents = loaded.mistakes, loaded.consents
    if mistakes or consents or loaded.recipe is None or loaded.engine is None:
        what, hint = f"recipe {wanted}", consent_hint(wanted)
        raise _report(what, loaded.document, list(mistakes), consents, hint=hint)
    return Resolved(
        loaded.recipe,
        loaded.engine,
        loaded.document.origins,
        loaded.warnings,
        loaded.translation,
        wanted,
        loaded.mods,
        loaded.image,
    )


def look_into(library: Library, wanted: str, settings: Iterable[str] = ()) -> Loaded:
    """Read a recipe with all that it inherits; RecipeError only where there is none to speak of."""
    path = _locate(library, wanted)
    document, translation, settings = _read_whole(library, path, list(settings))
    for assignment in settings:
        document = with_setting(document, assignment)
    document = anchored(document, Path())
    if translation is not None:
        translation = replace(translation, document=document)
    recipe, mistakes = validated(document, Recipe)
    engine, engine_mistakes = _engine_of(library, document)
    mistakes += engine_mistakes
    if recipe is None:
        return Loaded(wanted, document, None, engine, (*mistakes,), (), (), translation)
    image = recipe.image or (engine.image if engine is not None else None)
    if engine is not None:
        engine = settled_engine(_with_image(engine, recipe.image), library.images)
    # A value that is wrong was left out, and its absence is no second mistake.
    wrong = {mistake.path for mistake in mistakes}
    found = rules.find_contradictions(recipe, engine)
    mistakes += [mistake for mistake in found if mistake.path not in wrong]
    refused, warnings = _arguments(recipe, engine)
    foreign = library.foreign_files(document.origins)
    judge = Judge(recipe, document.origins, foreign, library.model_folders)
    mistakes += [*refused, *judge.self_consents()]
    return Loaded(
        wanted,
        document,
        recipe,
        engine,
        (*mistakes,),
        (*judge.consents(),),
        tuple(_line(document, warning) for warning in warnings),
        translation,
        find_mods(recipe, document.origins, path.parent),
        image,
    )


def read_unchecked(library: Library) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
    """Yield the name, the file and the content of each of a library's recipes, with all that it
    inherits, not held against the format.

    It takes a tenth of the time. A file that cannot be read is `list`'s to report.
    """
    read = functools.cache(read_document)
    for name, path in sorted(library.recipe_files().items()):
        with contextlib.suppress(RecipeError):
            yield name, path, _resolve_inheritance(library, path, (), read).content


def _read_whole(
    library: Library, path: Path, settings: list[str]
) -> tuple[Document, Translation | None, list[str]]:
    """Return a recipe with what it inherits, how it was translated, and what is still to be set."""
    document = read_document(path)
    if not (is_foreign(document) or OUR_SIGNS & document.content.keys()):
        raise RecipeError(f"{path} is no recipe: neither one of ours nor in a format of others")
    if not is_foreign(document):
        return _resolve_inheritance(library, path, ()), None, settings
    translation, rest = translate(document, path, settings)
    return anchored(translation.document, path.parent), translation, rest


def _with_image(engine: Engine, image: str | None) -> Engine:
    """Return the engine of an image that a recipe names; a tag may say which release it holds."""
    if image is None:
        return engine
    told = stated_release(image)
    return engine.model_copy(update={"image": image} | ({"vllm": told} if told else {}))


def _arguments(recipe: Recipe, engine: Engine | None) -> tuple[list[Mistake], list[Mistake]]:
    """Return what vLLM would refuse, and what it may, where only a near release was asked."""
    if engine is None:
        return [], []
    found, is_certain = argument_mistakes(recipe, engine)
    found += package_mistakes(recipe, engine)
    # A mod may bring flags, parsers and packages of its own.
    return (found, []) if is_certain and not recipe.mods else ([], found)


def load_engine(library: Library, name: str) -> Engine:
    """Raise RecipeError when it is unknown or invalid."""
    document = read_document(_known(library.engine_files(), name, "engine"))
    engine, problems = validated(document, Engine)
    if problems or engine is None:
        raise _report(f"engine {name}", document, problems)
    return engine


def _locate(library: Library, wanted: str) -> Path:
    if library.sources is not None and (found := library.sources.recipe_file(wanted)):
        return found
    if wanted.endswith((".yaml", ".yml")) or "/" in wanted:
        # Neither raises for a home of nobody or a name that is too long for any file.
        path = Path(os.path.expanduser(wanted))  # noqa: PTH111
        if os.path.exists(path):  # noqa: PTH110
            return path
        raise RecipeError(f"there is no recipe file {shown(wanted)}", hint=_no_source(wanted))
    return _known(library.recipe_files(), wanted, "recipe")


def _no_source(wanted: str) -> str | None:
    """SOURCE/RECIPE of a source that nobody added looks like a path."""
    name, _, rest = wanted.partition("/")
    is_path = wanted.endswith((".yaml", ".yml")) or name in ("", ".", "..", "~")
    add = f"sparkdeploy recipe source add {shown(name)} GIT_URL"
    return None if is_path or not rest else f"is {shown(name)} a source? {add}"


def _known(files: Mapping[str, Path], name: str, what: str) -> Path:
    if name not in files:
        raise RecipeError(f"there is no {what} {shown(name)}", hint=closest(name, files))
    return files[name]


def _resolve_inheritance(
    library: Library,
    path: Path,
    chain: Sequence[Path],
    read: Callable[[Path], Document] = read_document,
) -> Document:
    if path.resolve() in chain:
        names = " -> ".join(item.stem for item in (*chain, path))
        raise RecipeError(f"{path} extends itself: {names}")
    if len(chain) > MAX_ANCESTORS:
        raise RecipeError(f"{path} has more than {MAX_ANCESTORS} recipes that extend one another")
    document = read(path)
    if is_foreign(document):
        document = translate(document, path)[0].document
    document = anchored(document, path.parent)
    parent = document.content.get("extends")
    if not isinstance(parent, str):
        return document
    parent_path = _locate_parent(library, parent, path)
    inherited = _resolve_inheritance(library, parent_path, (*chain, path.resolve()), read)
    kept = replace(
        inherited,
        content={key: it for key, it in inherited.content.items() if key not in NOT_INHERITED},
        origins={
            path: at for path, at in inherited.origins.items() if path[0] not in NOT_INHERITED
        },
    )
    return merge(kept, document)


def parent_beside(child: Path, parent: str) -> Path | None:
    """Return the file that `extends` means where it is named by its place, not from a library."""
    beside = child.parent / (parent if parent.endswith((".yaml", ".yml")) else f"{parent}.yaml")
    is_another = os.path.isfile(beside) and beside.resolve() != child.resolve()  # noqa: PTH113 - as above
    return beside if is_another else None


def _locate_parent(library: Library, parent: str, child: Path) -> Path:
    if beside := parent_beside(child, parent):
        return beside
    # A user's `v2.yaml` that extends `v2` means the shipped one, not itself.
    others = [folder for folder in library.folders if folder.resolve() != child.parent.resolve()]
    try:
        return _locate(Library(tuple(others)), parent)
    except RecipeError as error:
        message = f"{child} extends {shown(parent)}: {error.message}"
        raise RecipeError(message, hint=error.hint) from error


def _engine_of(library: Library, document: Document) -> tuple[Engine | None, list[Mistake]]:
    name = document.content.get("engine")
    if not isinstance(name, str):
        return None, []
    if name in (files := library.engine_files()):
        return load_engine(library, name), []
    problem = Mistake(("engine",), f"there is no engine {shown(name)}", closest(name, files))
    return None, [problem]


def _report(
    what: str,
    document: Document,
    problems: list[Mistake],
    consents: Sequence[Mistake] = (),
    *,
    hint: str | None = None,
) -> RecipeError:
    counted = []
    if problems := list(dict.fromkeys(problems)):
        counted.append(f"has {len(problems)} mistake{'s' * (len(problems) > 1)}")
    if consents:
        things = f"{len(consents)} things that need" if consents[1:] else "1 thing that needs"
        counted.append(f"asks for {things} your consent")
    every = (*problems, *consents)
    lines = [_line(document, problem) for problem in every[:MAX_LISTED]]
    if len(every) > MAX_LISTED:
        lines.append(f"... and {len(every) - MAX_LISTED} more")
    return RecipeError(
        f"{what} {' and '.join(counted)}",
        detail="\n".join(lines),
        hint=hint if consents else None,
    )


def _line(document: Document, problem: Mistake) -> str:
    path = written_part(problem.path, document.origins)
    where = f"{document.origins[path]}: " if path else ""
    fix = f"; {problem.fix}" if problem.fix else ""
    return f"{where}{'.'.join(map(str, problem.path))}: {problem.message}{fix}"
