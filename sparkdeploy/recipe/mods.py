"""Mods of a recipe: where their folders lie on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.recipe.document import written_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.recipe.document import KeyPath, ValueOrigin
    from sparkdeploy.recipe.schema import Recipe

MAX_LEVELS = 6
"""How far above a recipe the repository's own folder may be, which mods are named from."""
REPOSITORY_SIGNS = (".git", ".sparkdeploy-source")


@dataclass(frozen=True, slots=True)
class FoundMod:
    """A mod as its recipe names it, and its folder here."""

    name: str
    folder: Path | None
    """None for commands, and for a folder that is not here."""
    run: str
    """The commands; empty for a folder."""
    needs_network: bool
    looked_in: tuple[Path, ...] = ()

    @property
    def is_missing(self) -> bool:
        return self.folder is None and not self.run


def find_mods(
    recipe: Recipe, origins: Mapping[KeyPath, ValueOrigin], recipe_folder: Path
) -> tuple[FoundMod, ...]:
    """Look for the folder of each mod: beside the recipe, or in a folder above it.

    Repositories of recipes name mods from their own top, such as `mods/NAME`. Nobody looks beyond
    that top, and a name with `..` leads nowhere. What was typed is looked for as if it stood in the
    recipe's own file.
    """
    found = []
    for index, mod in enumerate(recipe.mods):
        origin = origins.get(written_part(("mods", index), origins))
        is_written = origin is not None and origin.line is not None
        beside = Path(origin.file).parent if origin and is_written else recipe_folder
        folder, looked = mod_folder(mod.folder, beside) if mod.folder else (None, ())
        found.append(FoundMod(mod.name, folder, mod.run or "", mod.network, looked))
    return tuple(found)


def mod_folder(name: str, beside: Path) -> tuple[Path | None, tuple[Path, ...]]:
    """Return the folder of a mod that a recipe in `beside` names, and all places looked in."""
    written = Path(os.path.expanduser(name))  # noqa: PTH111 - never raises
    if written.is_absolute():
        return (written if _is_mod(written) else None), (written,)
    if ".." in written.parts:
        return None, ()
    looked = []
    for folder in _upwards(Path(os.path.realpath(beside))):
        place = folder / written
        looked.append(place)
        # A link may lead out of the repository.
        if _is_mod(place) and Path(os.path.realpath(place)).is_relative_to(folder):
            return place, tuple(looked)
    return None, tuple(looked)


def _is_mod(folder: Path) -> bool:
    return os.path.isfile(folder / "run.sh")  # noqa: PTH113 - never raises


def _upwards(folder: Path) -> Iterator[Path]:
    for place in (folder, *folder.parents)[:MAX_LEVELS]:
        yield place
        if any(os.path.lexists(place / sign) for sign in REPOSITORY_SIGNS):
            return
