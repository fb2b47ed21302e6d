"""`recipe import`: recipes of others read, told line by line, and written as ours."""

import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkdeploy import atomic_files
from sparkdeploy.errors import Mistakes, RecipeError, UsageError
from sparkdeploy.recipe.foreign.report import Translation, recipe_text
from sparkdeploy.recipe.foreign.translate import slug
from sparkdeploy.recipe.library import library, of_source, recipe_folders
from sparkdeploy.recipe.load import Library, count_words, look_into
from sparkdeploy.recipe.words import shown
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import read_bytes

SUFFIXES = (".yaml", ".yml")
MAX_FILES = 2_000


@dataclass(frozen=True, slots=True)
class Imported:
    """One file: what it says as a recipe of ours, or why it is none."""

    file: Path
    translation: Translation | None = None
    mistakes: tuple[str, ...] = ()
    consents: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: str | None = None
    """Why nothing could be read of it."""
    missing_mods: tuple[str, ...] = ()
    written: Path | None = None

    @property
    def text(self) -> str | None:
        return recipe_text(self.translation) if self.translation is not None else None

    def lines(self) -> Iterator[str]:
        if self.translation is None:
            yield f"{shown(self.file)}: {self.refusal}"
            return
        yield from self.translation.whole_lines(self.consents, self.warnings)
        if self.missing_mods:
            yield f"  mods that are not here ({len(self.missing_mods)}), `up` refuses to build:"
            yield from (
                f"    {name}: put its folder beside the recipe" for name in self.missing_mods
            )
        if self.mistakes:
            yield f"  mistakes ({len(self.mistakes)}), `plan` refuses it:"
            yield from (f"    {line}" for line in self.mistakes)
        if self.written is not None:
            yield f"  written to {self.written}"

    def as_dict(self) -> dict[str, Any]:
        translated = self.translation.as_dict() if self.translation is not None else {}
        return {
            "file": str(self.file),
            **translated,
            "refusal": self.refusal,
            "mistakes": list(self.mistakes),
            "needs_consent": list(self.consents),
            "warnings": list(self.warnings),
            "missing_mods": list(self.missing_mods),
            "written": str(self.written) if self.written else None,
        }


def import_recipes(
    source: Path, destination: Path | None, assignments: Sequence[str], settings: Settings
) -> tuple[Imported, ...]:
    """Read a file, or every recipe of others below a folder; write those that were translated."""
    known = library(settings)
    source = of_source(known, str(source)) or source
    found = tuple(_read(known, file, assignments) for file in _files(source))
    if destination is None:
        return found
    if destination.suffix in SUFFIXES and not destination.is_dir():
        if source.is_dir():
            raise UsageError(
                f"-o {destination} is one file, and {source} a folder",
                hint=f"name a folder: -o {shlex.quote(str(destination.with_suffix('')))}",
            )
        places = {it.file: destination for it in found if it.translation is not None}
    else:
        places = _places(found, source if source.is_dir() else source.parent, destination)
    try:
        # Before anything is written.
        for item in found:
            path = places.get(item.file)
            if path is not None and _is_trusted(path, settings):
                _refuse_without_consent(item)
            if path and os.path.lexists(path) and not _holds(path, item.text):
                raise _other_file(path)
        return tuple(_written(item, places.get(item.file), settings) for item in found)
    except OSError as error:
        raise RecipeError(f"{destination} cannot be written to: {error}") from error


def _holds(path: Path, text: str | None) -> bool:
    content = (text or "").encode()
    try:
        return read_bytes(path, len(content)) == content
    except OSError:  # it is longer, or a pipe
        return False


def _is_trusted(path: Path, settings: Settings) -> bool:
    """Return whether a file written there is one of the user's own recipes, links resolved."""
    place = path.resolve()
    return any(place.is_relative_to(folder.resolve()) for folder in recipe_folders(settings))


def _places(found: Sequence[Imported], root: Path, destination: Path) -> dict[Path, Path]:
    """Return where each is written: as below theirs, by its name, or else by its file's."""
    places: dict[Path, Path] = {}
    for item in found:
        if item.translation is not None:
            folder, stem = destination / item.file.relative_to(root).parent, slug(item.file.stem)
            numbered = (f"{stem}-{number}" for number in itertools.count(2))
            names = itertools.chain((item.translation.content["name"], stem), numbered)
            paths = (folder / f"{name}.yaml" for name in names)
            places[item.file] = next(path for path in paths if path not in places.values())
    return places


def _files(source: Path) -> list[Path]:
    if not os.path.exists(source):  # noqa: PTH110 - never raises
        raise UsageError(f"there is no file or folder {shown(source)}")
    if source.is_file():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise UsageError(f"{source} holds no {' or '.join(SUFFIXES)} file")
    if len(found) > MAX_FILES:
        raise UsageError(f"{source} holds {len(found)} files, and {MAX_FILES} are the most")
    return found


def _read(known: Library, file: Path, assignments: Sequence[str]) -> Imported:
    try:
        loaded = look_into(known, os.path.join(".", file), assignments)  # noqa: PTH118 - a path, not a name
    except RecipeError as error:
        details = f" ({error.detail.strip()})" if error.detail else ""
        return Imported(file, refusal=f"{error.message}{details}")
    if loaded.translation is None:
        return Imported(file, refusal="it is a recipe of ours already")
    mistakes, consents = loaded.lines(loaded.mistakes), loaded.lines(loaded.consents)
    mods = loaded.resolved.mods if loaded.resolved is not None else ()
    missing = tuple(shown(mod.name) for mod in mods if mod.is_missing)
    return Imported(
        file,
        loaded.translation,
        (*mistakes,),
        (*consents,),
        loaded.warnings,
        missing_mods=missing,
    )


def _refuse_without_consent(item: Imported) -> None:
    """A recipe in a folder of the user's own is the user's word: nobody is asked again."""
    if asked := (*item.consents, *item.mistakes):
        raise RecipeError(
            f"{item.file} {count_words(item.mistakes, item.consents)}, and recipes of that folder "
            "are trusted",
            detail=Mistakes("\n".join(asked)),
            hint="write it elsewhere with -o; --allow-unsafe takes what needs consent",
        )


def _other_file(path: Path) -> RecipeError:
    return RecipeError(
        f"{path} exists with another content, and stays", hint="move it, or choose another -o"
    )


def _written(item: Imported, path: Path | None, settings: Settings) -> Imported:
    if path is None or item.text is None:
        return item
    content = item.text.encode()
    # A link may have been put there since the first look: the folder is judged that is written to.
    with atomic_files.opened_folder(path.parent) as folder:
        if _is_trusted(folder.real_path / path.name, settings):
            _refuse_without_consent(item)
        try:
            folder.create(path.name, content)
        except FileExistsError:
            if folder.read_bytes(path.name, len(content) + 1) != content:
                raise _other_file(path) from None
    return replace(item, written=path)
