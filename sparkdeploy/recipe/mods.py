"""Mods of a recipe: where their folders lie on this machine."""

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkdeploy.recipe.document import KeyPath, ValueOrigin, written_part
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.recipe.sources import SNAPSHOT
from sparkdeploy.recipe.words import shown
from sparkdeploy.stored_json import read_bytes

SCRIPT = "run.sh"
MAX_FILES = 2_000
MAX_BYTES = 64 << 20
"""Of one mod: what an image build takes, and so what a consent is given for."""
NOT_TAKEN = frozenset({".git", "__pycache__", ".DS_Store"})
"""What comes and goes in a folder without its author's doing; `.git` may be a file."""
MAX_LEVELS = 6
"""How many folders are looked in where no repository ends it: the recipe's own and those above."""
REPOSITORY_SIGNS = (".git", SNAPSHOT)
MAX_SHOWN = 300
"""Of a setting of mods that is proposed, in characters."""


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
    beside: Path | None = None
    judged: str = ""
    """The hash of its files that a consent was asked or given for; empty where none is needed."""

    @property
    def is_missing(self) -> bool:
        return self.folder is None and not self.run

    @property
    def source(self) -> str:
        """Return which source its recipe is from; empty for a file of somebody's own."""
        top = _top(self.beside) if self.beside is not None else None
        is_taken = top is not None and os.path.lexists(top / SNAPSHOT)
        return top.parent.name if top is not None and is_taken else ""

    def places(self) -> str:
        """Say where its run.sh was looked for: as paths from the source's top, or the recipe."""
        if self.beside is None or not self.looked_in:
            return "nowhere, for a name with `..` leads out of its repository"
        if os.path.isabs(os.path.expanduser(self.name)):  # noqa: PTH111, PTH117 - never raises
            return f"in {shown(self.looked_in[0])}"
        top = _top(self.beside) if self.source else None
        paths = [shown(os.path.relpath(place, top or self.beside)) for place in self.looked_in]
        listed = " and ".join(filter(None, (", ".join(paths[:-1]), paths[-1])))
        return f"in {listed} {'of it' if top else 'from the recipe'}"


def find_mods(
    recipe: Recipe, origins: Mapping[KeyPath, ValueOrigin], recipe_folder: Path
) -> tuple[FoundMod, ...]:
    """Look for the folder of each mod: beside the recipe, or in a folder above it.

    Repositories of recipes name mods from their own top, such as `mods/NAME`. Nobody looks beyond
    that top, or in more than six folders where there is none, and a name with `..` leads nowhere.
    What was typed is looked for as if it stood in the recipe's own file.
    """
    found = []
    for index, mod in enumerate(recipe.mods):
        origin = origins.get(written_part(("mods", index), origins))
        is_written = origin is not None and origin.line is not None
        beside = Path(origin.file).parent if origin and is_written else recipe_folder
        folder, looked = mod_folder(mod.folder, beside) if mod.folder else (None, ())
        found.append(FoundMod(mod.name, folder, mod.run or "", mod.network, looked, _real(beside)))
    return tuple(found)


def files_hash(files: Mapping[Path, bytes]) -> str:
    """Return the sha256, in hex, over the files of a mod's folder."""
    parts = (part for path in sorted(files) for part in (os.fsencode(path), files[path]))
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def proposed_setting(mods: Sequence[FoundMod]) -> str:
    """Return a `--set` that names the folders of all these mods; of a missing one it is a guess."""
    setting = mods_setting([_proposed(mod) for mod in mods])
    is_shown = len(setting) <= MAX_SHOWN and setting.isprintable()
    return setting if is_shown else mods_setting([{"folder": "/path/to/the/mod"}])


def mods_setting(items: Sequence[Mapping[str, str]]) -> str:
    """Return a `--set` that names mods, each by its keys and values, as YAML on one line."""
    rows = (", ".join(f"{key}: {_in_flow(key, it)}" for key, it in item.items()) for item in items)
    flow = ", ".join(f"{{{row}}}" for row in rows)
    return f"--set {shlex.quote(f'mods=[{flow}]') if flow else 'mods=[]'}"


def _in_flow(key: str, value: str) -> str:
    # A path of such letters is a text for YAML without quotes.
    is_plain = key == "network" or re.fullmatch(r"[\w.-]*/[\w./-]*", value, re.ASCII) is not None
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _proposed(mod: FoundMod) -> dict[str, str]:
    # Of `../mods/NAME` and `~/mods/NAME` what follows a placeholder.
    name = mod.name.rstrip("/").rpartition("..")[2].strip("~/")
    named = {"run": mod.run} if mod.run else {"folder": str(mod.folder or f"/path/to/{name}")}
    return named | ({"network": "true"} if mod.needs_network else {})


def maker_of(folder: str, mods: Sequence[FoundMod]) -> str | None:
    """Return the mod whose commands name a folder of the image; None where none does."""
    for mod in mods:
        text = mod.run
        if mod.folder is not None:
            with contextlib.suppress(OSError):
                text = read_bytes(mod.folder / SCRIPT, MAX_BYTES).decode(errors="replace")
        if folder.rstrip("/") in text:
            return mod.name
    return None


def mod_folder(name: str, beside: Path) -> tuple[Path | None, tuple[Path, ...]]:
    written = Path(os.path.expanduser(name))  # noqa: PTH111 - never raises
    if written.is_absolute():
        return (written if _is_mod(written) else None), (written,)
    if ".." in written.parts:
        return None, ()
    looked, own = [], _real(beside)
    top, places = _top(own), (own, *own.parents)
    for folder in places[:MAX_LEVELS] if top is None else places[: places.index(top) + 1]:
        place = folder / written
        looked.append(place)
        # A link may lead out of the repository.
        if _is_mod(place) and Path(os.path.realpath(place)).is_relative_to(folder):
            return place, tuple(looked)
    return None, tuple(looked)


def _is_mod(folder: Path) -> bool:
    return os.path.isfile(folder / SCRIPT)  # noqa: PTH113 - never raises


def _top(folder: Path) -> Path | None:
    signs = ((place, sign) for place in (folder, *folder.parents) for sign in REPOSITORY_SIGNS)
    return next((place for place, sign in signs if os.path.lexists(place / sign)), None)


def _real(folder: Path) -> Path:
    return Path(os.path.realpath(folder))
