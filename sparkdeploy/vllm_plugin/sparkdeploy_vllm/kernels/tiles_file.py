"""Tuned tiles as JSON in the cache folder: written whole, believed for what they were made for.

Standard library only. Nothing here is needed to serve: a file that is broken, foreign or old is
refused with a reason, and the caller goes on with the tiles that ship.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

SCHEMA = 1
MOST_BYTES = 64 * 1024
"""A file of ours has 2 KB; what is larger is not ours and is not read."""

Tiles = TypeVar("Tiles")
Tile = TypeVar("Tile")


class UnusableTilesError(ValueError):
    """Why a file with tuned tiles must not be used."""


@dataclass(frozen=True, slots=True)
class TilesFile(Generic[Tiles]):
    """A file of tiles, what it must have been made for, and what makes tiles of its entries."""

    path: Path
    key: Mapping[str, Any]
    checked: Callable[[list[Any]], Tiles]
    """Raises UnusableTilesError for entries that no kernel takes."""

    def read(self) -> Tiles | None:
        """Return None where there is no file, and raise UnusableTilesError for one that cannot be
        read, is broken or was made for something else.
        """
        try:
            with self.path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnusableTilesError(f"it cannot be read: {error.strerror}") from error
        if len(content) > MOST_BYTES:
            raise UnusableTilesError(f"it has more than {MOST_BYTES} bytes")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UnusableTilesError(f"it is not JSON: {error}") from error
        return self._of(document)

    def write(self, entries: Sequence[Mapping[str, Any]], made_with: Mapping[str, str]) -> Path:
        """A reader sees the old file or the new; UnusableTilesError for what it would refuse."""
        document = {
            "schema": SCHEMA,
            "key": dict(self.key),
            "tiles": [dict(entry) for entry in entries],
            "made_with": dict(made_with),
        }
        text = json.dumps(document, indent=1) + "\n"
        self._of(json.loads(text))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.path, text)
        return self.path

    def _of(self, document: object) -> Tiles:
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise UnusableTilesError(f"it is not of schema {SCHEMA}")
        made_for = document.get("key")
        if not isinstance(made_for, dict):
            raise UnusableTilesError("it does not say what it was made for")
        for name, wanted in self.key.items():
            found = tuple(it) if isinstance(it := made_for.get(name), list) else it
            if found != wanted:
                raise UnusableTilesError(f"it was made for {name} {found!r}, here it is {wanted!r}")
        entries = document.get("tiles")
        if not isinstance(entries, list) or not entries:
            raise UnusableTilesError("it has no tiles")
        return self.checked(entries)


def tile_of(entry: object, kind: type[Tile], words: frozenset[str] = frozenset()) -> Tile:
    """Return the dataclass `kind` of an entry; all its fields but `words` are whole numbers."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(entry, dict) or not set(names) <= set(entry):
        raise UnusableTilesError(f"a tile is {str(entry)[:80]!r}; it needs {', '.join(names)}")
    values = {name: entry[name] for name in names}
    # True counts as 1 and 8.0 as 8 where values are compared, but not where kernels are compiled.
    if any(type(value) is not (str if name in words else int) for name, value in values.items()):
        raise UnusableTilesError(f"a tile is {str(entry)[:80]!r}; its sizes must be whole numbers")
    return kind(**values)


def value_problem(tile: object, allowed: Mapping[str, Sequence[object]]) -> str:
    """Return which value of a tile is not among those that are known; empty when all are."""
    for name, values in allowed.items():
        if getattr(tile, name) not in values:
            return f"{name} is {getattr(tile, name)!r}, known are {', '.join(map(str, values))}"
    return ""


def fingerprint(*sources: str) -> str:
    """Return twelve digits that change with files beside this one."""
    contents = [Path(__file__).with_name(source).read_bytes() for source in sources]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:12]


def cache_folder(kind: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of tuned tiles: below XDG_CACHE_HOME, which a container keeps."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    # Path.expanduser raises where a user has no home.
    return Path(os.path.expanduser(cache)) / "sparkdeploy" / kind  # noqa: PTH111


def file_name(card: str, capability: tuple[int, int], shape: str) -> str:
    """Return a name that leaves no folder, whatever the card is called."""
    word = re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")
    major, minor = capability
    return f"{word}-sm{major}{minor}-{shape}.json"


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
    ) as file:
        partial = Path(file.name)
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            partial.chmod(0o644)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
