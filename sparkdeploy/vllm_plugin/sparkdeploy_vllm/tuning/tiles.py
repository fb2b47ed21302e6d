"""Which tiles a kernel takes: those that ship, or those that were tuned on the user's card.

Tuned tiles are JSON in the cache folder, written by `sparkdeploy_vllm.tune_head` and used only for
what they were made for. No such file stops a start: one that is damaged, foreign or old is named
in the log, and the tiles that ship are used. Standard library only.
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

SCHEMA = 1
Source = Literal["tuned", "shipped", "default"]
Tile = TypeVar("Tile")


class UnusableTilesError(ValueError):
    """Why a file with tuned tiles must not be used."""


@dataclass(frozen=True, slots=True)
class TilesKey(ABC, Generic[Tile]):
    """What tiles are made for; on anything else they may be slower, wrong, or not compile."""

    folder: ClassVar[str]
    tile_type: ClassVar[type]

    card: str
    capability: tuple[int, int]

    subject: ClassVar[property]
    """What the tiles are for, as the log says it."""
    shape: ClassVar[property]
    """The part of a file's name that tells shapes apart."""

    @abstractmethod
    def shipped(self) -> "Choice[Tile]":
        """Return the tiles that ship; ValueError where there are none for such a card."""

    @abstractmethod
    def problem(self, tiles: Sequence[Tile]) -> str:
        """Return why the kernel does not take these tiles; empty when it does."""


@dataclass(frozen=True, slots=True)
class ShippedTiles(Generic[Tile]):
    """Tiles for cards of one kind, and where they come from."""

    name: str
    tiles: tuple[Tile, ...]
    origin: str
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Choice(Generic[Tile]):
    """Tiles and where they are from; `ignored` says why a tuned file was not taken."""

    key: TilesKey[Tile]
    source: Source
    origin: str
    tiles: tuple[Tile, ...]
    ignored: str = ""

    @property
    def line(self) -> str:
        return f"sparkdeploy: {self.key.subject}: tiles={self.source} ({self.origin})"


@dataclass(frozen=True, slots=True)
class Tuned(Generic[Tile]):
    """A tile that won; milliseconds of it and of the tile that ships, by rows or context tokens."""

    tile: Tile
    ms: Mapping[int, float]
    shipped_ms: Mapping[int, float]


def choose(key: TilesKey[Tile], folder: Path | None = None) -> Choice[Tile]:
    """Return the tuned tiles in `folder` (default: the cache's), else those that ship."""
    shipped, path = key.shipped(), tuned_path(key, folder or tuned_folder(key))
    try:
        tiles = _read(key, path)
    except FileNotFoundError:
        return shipped
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, those that ship run
        is_ours = isinstance(error, UnusableTilesError)
        why = str(error) if is_ours else f"it is damaged: {type(error).__name__}: {error}"
        return replace(shipped, ignored=f"{path} is not used: {why}")
    return replace(shipped, source="tuned", origin=str(path), tiles=tiles)


def write_tuned(
    key: TilesKey[Tile], tuned: Sequence[Tuned[Tile]], made_with: Mapping[str, str], folder: Path
) -> Path:
    """Write the file that `choose` finds; a reader sees the old one or the new."""
    tiles = [
        {**asdict(won.tile), "ms": _rounded(won.ms), "shipped_ms": _rounded(won.shipped_ms)}  # type: ignore[call-overload]
        for won in tuned
    ]
    document = {"schema": SCHEMA, "key": asdict(key), "tiles": tiles, "made_with": dict(made_with)}
    folder.mkdir(parents=True, exist_ok=True)
    path = tuned_path(key, folder)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return partial.replace(path)


def tuned_folder(key: TilesKey[Any], environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of tuned tiles: below XDG_CACHE_HOME, which a container keeps."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    # Path.expanduser raises where a user has no home.
    return Path(os.path.expanduser(cache)) / "sparkdeploy" / key.folder  # noqa: PTH111


def tuned_path(key: TilesKey[Any], folder: Path) -> Path:
    """Return a card's and a shape's file; its name leaves no folder whatever the card's is."""
    word = re.sub(r"[^a-z0-9]+", "-", key.card.lower()).strip("-")
    major, minor = key.capability
    return folder / f"{word}-sm{major}{minor}-{key.shape}.json"


def value_problem(tile: object, allowed: Mapping[str, Sequence[object]]) -> str:
    """Return which value of a tile is not among those that are known; empty when all are."""
    for name, values in allowed.items():
        if getattr(tile, name) not in values:
            return f"a tile's {name} is {getattr(tile, name)!r}, known are {values}"
    return ""


def fingerprint(*sources: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def _read(key: TilesKey[Tile], path: Path) -> tuple[Tile, ...]:
    document = json.loads(path.read_bytes())
    if document["schema"] != SCHEMA:
        raise UnusableTilesError(f"it is not of schema {SCHEMA}")
    made_for = document["key"]
    for name, wanted in json.loads(json.dumps(asdict(key))).items():
        if made_for[name] != wanted:
            raise UnusableTilesError(
                f"it was made for {name} {made_for[name]!r}, here it is {wanted!r}"
            )
    names = [field.name for field in fields(key.tile_type)]
    tiles = tuple(
        key.tile_type(**{name: entry[name] for name in names}) for entry in document["tiles"]
    )
    if problem := key.problem(tiles):
        raise UnusableTilesError(problem)
    return tiles


def _rounded(by_size: Mapping[int, float]) -> dict[int, float]:
    return {size: round(ms, 5) for size, ms in by_size.items()}
