"""What a command takes along: recipes by path, the user's own ones, the cluster, files to read.

Files keep their place below one folder there, so that what they name relative to one another is
found. Absolute paths and `~` are the other machine's. No key, token or environment is sent.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.commands.elsewhere.program import digest_of
from sparkdeploy.errors import BuildError, RecipeError, UsageError
from sparkdeploy.folders import RECIPES_VARIABLE
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.mods import read_mod
from sparkdeploy.recipe.document import is_foreign, read_document
from sparkdeploy.recipe.foreign.translate import translate
from sparkdeploy.recipe.library import Library, parent_beside, recipe_folders
from sparkdeploy.recipe.mods import FoundMod, mod_folder
from sparkdeploy.recipe.paths import MAX_TEMPLATE_BYTES, template_question
from sparkdeploy.recipe.sources.shelf import Sources
from sparkdeploy.recipe.unsafe import consent_hint
from sparkdeploy.settings import CLUSTER_VARIABLE
from sparkdeploy.stored_json import read_bytes, read_unlinked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.settings import Settings

CLUSTER_FILE = "cluster.yaml"
CONSENT = "--allow-unsafe"
READ_OPTIONS = ("--prompts", "--image")
"""Their files are data that the command reads; what others name is of the other machine."""
READ_COMMAND = ("bench", "import")
"""All files that it names are data."""
MAX_READ_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Luggage:
    argv: tuple[str, ...]
    paths: frozenset[str]
    """Those of the arguments that name files in the luggage."""
    files: tuple[ContextFile, ...]
    own_recipes: Path
    """The folder of the user's own recipes."""

    @property
    def digest(self) -> str:
        """Empty where there are no files."""
        return digest_of(self.files) if self.files else ""

    def argv_in(self, folder: str) -> tuple[str, ...]:
        return tuple(
            f"{folder}/{_place(Path(word))}" if word in self.paths else word for word in self.argv
        )

    def variables_in(self, folder: str) -> dict[str, str]:
        """Return how the program there learns of the files in `folder`."""
        own, found = _place(self.own_recipes), {file.path for file in self.files}
        variables = {}
        if any(path.startswith(f"{own}/") for path in found):
            variables[RECIPES_VARIABLE] = f"{folder}/{own}"
        if CLUSTER_FILE in found:
            variables[CLUSTER_VARIABLE] = f"{folder}/{CLUSTER_FILE}"
        return variables


def pack(argv: Sequence[str], settings: Settings) -> Luggage:
    """Look at the arguments; RecipeError for a recipe that cannot be read or may not be sent."""
    library = Library(recipe_folders(settings), sources=Sources.below(settings.state_dir))
    packer = _Packer(library, settings.config_dir / "recipes")
    argv = [part for word in argv for part in _parts(word)]
    data = frozenset(_data_files(argv))
    words = [word if word in data else packer.named(word) for word in argv]
    recipes = frozenset(word for word in words if _is_recipe_file(word)) - data
    for path in recipes:
        packer.take(Path(path), is_consented=CONSENT in argv)
    for path in data:
        packer.take_data(Path(path))
    packer.take_own()
    files = list(packer.files.values())
    if settings.cluster is not None:
        text = yaml_text.dump(dict(settings.cluster))
        files.append(ContextFile(CLUSTER_FILE, text.encode()))
    return Luggage(tuple(words), recipes | data, tuple(files), packer.own)


def _parts(word: str) -> tuple[str, ...]:
    """Return `--prompts=FILE` as two words: the file gets another place."""
    option, equals, value = word.partition("=")
    return (option, value) if equals and option in READ_OPTIONS else (word,)


def _data_files(argv: Sequence[str]) -> Iterator[str]:
    """Yield those that are here; for one that is not, the other machine looks."""
    pairs = list(pairwise(argv))
    named = [value for option, value in pairs if option in READ_OPTIONS]
    # Options of the program itself, such as -v, may stand before it.
    if READ_COMMAND in pairs:
        named += argv[pairs.index(READ_COMMAND) + len(READ_COMMAND) :]
    yield from (word for word in named if os.path.isfile(word))  # noqa: PTH113 - never raises


def _is_recipe_file(word: str) -> bool:
    is_named_so = word.endswith((".yaml", ".yml")) and not word.startswith("-")
    return is_named_so and os.path.isfile(word)  # noqa: PTH113 - never raises


def _place(path: Path) -> str:
    return f"files{os.path.abspath(path)}"  # noqa: PTH100 - links are kept as they are named


class _Packer:
    def __init__(self, library: Library, own: Path) -> None:
        self._library = library
        self.own = own
        self.files: dict[str, ContextFile] = {}

    def named(self, word: str) -> str:
        """Return a recipe's name where its path is that of a shipped one or of one's own.

        SOURCE/RECIPE becomes the file's path: the machine there has not that source, or another
        commit of it. Every other word stays.
        """
        if not _is_recipe_file(word):
            return str(self._of_source(word) or word)
        path = Path(word)
        known = self._library.recipe_files().get(path.stem)
        is_known = known is not None and known.samefile(path) and self._is_own(path)
        return path.stem if is_known else word

    def _of_source(self, word: str) -> Path | None:
        """Return None for words that only look like it, such as a model's ORG/NAME."""
        with contextlib.suppress(RecipeError):
            return self._library.sources.recipe_file(word) if self._library.sources else None
        return None

    def take_own(self) -> None:
        """Take the user's own recipes; a mistake in one that is not asked for raises nothing."""
        for path in sorted(self.own.rglob("*.yaml")):
            with contextlib.suppress(RecipeError, BuildError):
                self.take(path, is_consented=False)

    def take(self, path: Path, *, is_consented: bool) -> None:
        """Take a recipe with what it extends, its chat template and its mods, where they lie near.

        A stranger's mods only with consent: nothing would build them without.
        """
        if _place(path) in self.files:
            return
        content = _as_ours(path)
        is_own = self._is_own(path)
        self._add(path, is_own=is_own)
        parent, serve = content.get("extends"), content.get("serve")
        sources = self._library.sources
        if isinstance(parent, str) and (beside := parent_beside(path, parent, sources)):
            self.take(beside, is_consented=is_consented)
        template = serve.get("chat_template") if isinstance(serve, dict) else None
        if isinstance(template, str) and template and not template.startswith(("/", "~")):
            meant = Path(os.path.realpath(path.parent / template))
            if not is_own and not is_consented:
                _refuse_template(path, meant)
            self._add(path.parent / template, is_own=is_own, meant=meant)
        if is_own or is_consented:
            for folder in _mod_folders(content, path.parent):
                self._add_mod(folder)

    def take_data(self, path: Path) -> None:
        """Take a file as it is; UsageError for one that cannot be read, or is too large."""
        try:
            content = read_bytes(path, MAX_READ_BYTES)
        except OSError as error:
            raise UsageError(
                f"{path} is not sent: {error.strerror}",
                hint="copy it there, and name it as that machine does",
            ) from error
        self.files[_place(path)] = ContextFile(_place(path), content)

    def _add_mod(self, folder: Path) -> None:
        files = read_mod(FoundMod(folder.name, folder, "", needs_network=False)).files
        for file in files:
            place = f"{_place(folder)}/{file.path}"
            self.files[place] = replace(file, path=place)

    def _is_own(self, path: Path) -> bool:
        real = path.resolve()
        return any(real.is_relative_to(folder.resolve()) for folder in self._library.folders)

    def _add(self, path: Path, *, is_own: bool, meant: Path | None = None) -> None:
        """Take a file; `meant` is where its links led when it was judged."""
        place = _place(path)
        # There it would count as the user's own words.
        if not is_own and place.startswith(f"{_place(self.own)}/"):
            raise RecipeError(
                f"{path} leads out of the folder of your own recipes",
                hint="with --on name the file itself",
            )
        if not path.is_file():
            return
        try:
            content = read_unlinked(meant or path.resolve(), MAX_TEMPLATE_BYTES)
        except OSError as error:
            raise RecipeError(
                f"{path} is not sent: {error.strerror}",
                hint="copy it there, and name it by its absolute path",
            ) from error
        self.files[place] = ContextFile(place, content)


def _as_ours(path: Path) -> Mapping[str, Any]:
    """Return a recipe's content; what cannot be translated is refused there, with what is set."""
    document = read_document(path)
    if is_foreign(document):
        with contextlib.suppress(RecipeError):
            return translate(document, path)[0].document.content
    return document.content


def _mod_folders(content: Mapping[str, Any], beside: Path) -> Iterator[Path]:
    """Yield those that lie beside or above the recipe; the other machine looks the same way."""
    mods = content.get("mods")
    for mod in mods if isinstance(mods, list) else []:
        name = mod.get("folder") if isinstance(mod, dict) else None
        if isinstance(name, str) and not name.startswith(("/", "~")):
            folder, _ = mod_folder(name, beside)
            if folder is not None:
                yield folder


def _refuse_template(path: Path, meant: Path) -> None:
    """A stranger's recipe has no file of this machine sent that it could not have mounted here."""
    if question := template_question(meant, path.parent):
        raise RecipeError(f"{path}: serve.chat_template: {question}", hint=consent_hint(str(path)))
