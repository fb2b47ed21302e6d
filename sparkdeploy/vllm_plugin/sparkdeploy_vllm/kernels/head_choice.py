"""Which tiles the INT8 head of a card and a shape uses. Asked once per matrix, while it loads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkdeploy_vllm.kernels.head_tiles_file import (
    HeadKey,
    UnusableTilesError,
    read_tuned,
    tuned_path,
)
from sparkdeploy_vllm.kernels.int8_head_configs import DEFAULT, HeadTile, shipped_for

Source = Literal["tuned", "shipped", "default"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Tiles and where they are from; `ignored` says why a tuned file was not taken."""

    key: HeadKey
    source: Source
    origin: str
    tiles: tuple[HeadTile, ...]
    ignored: str = ""

    @property
    def line(self) -> str:
        return (
            f"sparkdeploy: INT8 head {self.key.vocab} x {self.key.hidden}: "
            f"tiles={self.source} ({self.origin})"
        )


def choose_tiles(key: HeadKey, folder: Path) -> Choice:
    path = tuned_path(key, folder)
    try:
        tiles = read_tuned(key, folder)
    except UnusableTilesError as error:
        return shipped_choice(key, ignored=f"{path} is not used: {error}")
    return Choice(key, "tuned", str(path), tiles) if tiles else shipped_choice(key)


def shipped_choice(key: HeadKey, *, ignored: str = "") -> Choice:
    table = shipped_for(key.capability)
    source: Source = "default" if table is DEFAULT else "shipped"
    name = "" if table is DEFAULT else f"{table.name}: "
    return Choice(key, source, f"{name}{table.origin}", table.tiles, ignored)
