"""Which tiles a kernel takes, and why: those tuned on the user's card, or those that ship."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

from sparkdeploy_vllm.kernels.tiles_file import UnusableTilesError

Source = Literal["tuned", "shipped", "default"]


class TilesKey(Protocol):
    @property
    def subject(self) -> str:
        """What the tiles are for, as the log says it."""


Key = TypeVar("Key", bound=TilesKey)
Tiles = TypeVar("Tiles")


@dataclass(frozen=True, slots=True)
class Choice(Generic[Key, Tiles]):
    """Tiles and where they are from; `ignored` says why a tuned file was not taken."""

    key: Key
    source: Source
    origin: str
    tiles: Tiles
    ignored: str = ""

    @property
    def line(self) -> str:
        return f"sparkdeploy: {self.key.subject}: tiles={self.source} ({self.origin})"


def tuned_or(
    shipped: Choice[Key, Tiles], path: Path, read: Callable[[], Tiles | None]
) -> Choice[Key, Tiles]:
    """Return what `read` finds at `path`; what ships where it finds nothing or nothing usable."""
    try:
        tiles = read()
    except UnusableTilesError as error:
        return replace(shipped, ignored=f"{path} is not used: {error}")
    if tiles is None:
        return shipped
    return replace(shipped, source="tuned", origin=str(path), tiles=tiles)
