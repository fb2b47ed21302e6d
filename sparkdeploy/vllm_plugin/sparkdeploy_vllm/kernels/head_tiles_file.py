"""Tuned tiles of INT8 and INT4 heads in the cache folder: what they are for, which can be true."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparkdeploy_vllm.kernels.head_configs import HeadTile, Weights
from sparkdeploy_vllm.kernels.tiles_file import (
    TilesFile,
    UnusableTilesError,
    cache_folder,
    file_name,
    fingerprint,
    tile_of,
    value_problem,
)

ROW_CLASSES = (8, 16, 32, 64, 128)
"""`rows` that a tile may have. The first is 8 for all cards: one request with speculation (3 rows)
and without (1 row) must share a tile, or the text could differ."""
MUST_HAVE_ROWS = 64
"""Up to here the weights are read once."""
VOCAB_STEPS = (64, 128)
HIDDEN_STEPS = (64, 128, 256)
PACKED_HIDDEN_STEPS = (128, 256)
"""Groups of 128."""
WARPS = (2, 4, 8)
STAGES = (2, 3, 4)
WGMMA_WARPS = 4


@dataclass(frozen=True, slots=True)
class HeadKey:
    """What tuned tiles were made for; anything else may be slower, wrong, or not compile."""

    card: str
    capability: tuple[int, int]
    vocab: int
    """Rows of the matrix on one rank, padding included."""
    hidden: int
    kernel: str
    """Fingerprint of the kernels' source."""
    triton: str
    weights: Weights = "int8"

    @property
    def subject(self) -> str:
        return f"{self.weights.upper()} head {self.vocab} x {self.hidden}"


@dataclass(frozen=True, slots=True)
class TunedTile:
    """A tile that won, and the milliseconds of it and of the tile that ships, at its `rows`."""

    tile: HeadTile
    ms: float
    shipped_ms: float


def kernel_fingerprint(weights: Weights = "int8") -> str:
    # INT4's kernel uses parts of INT8's.
    sources = ("int8_head.py",) if weights == "int8" else ("int8_head.py", "int4_head.py")
    return fingerprint(*sources)


def tuned_folder(environment: Mapping[str, str] = os.environ) -> Path:
    return cache_folder("int8-head", environment)


def tuned_path(key: HeadKey, folder: Path) -> Path:
    """Return the file of a card and a shape; one for a newer kernel takes its place."""
    form = "" if key.weights == "int8" else f"-{key.weights}"
    return folder / file_name(key.card, key.capability, f"{key.vocab}x{key.hidden}{form}")


def read_tuned(key: HeadKey, folder: Path) -> tuple[HeadTile, ...] | None:
    """Return None where there are none, and raise UnusableTilesError for a file that cannot be
    read, is broken or was made for another card, shape, kernel or Triton.
    """
    return _file(key, folder).read()


def write_tuned(
    key: HeadKey, tuned: Sequence[TunedTile], made_with: Mapping[str, str], folder: Path
) -> Path:
    """A reader sees the old file or the new; UnusableTilesError for what it would refuse."""
    entries = [
        {**asdict(won.tile), "ms": round(won.ms, 4), "shipped_ms": round(won.shipped_ms, 4)}
        for won in tuned
    ]
    return _file(key, folder).write(entries, made_with)


def paths_for(capability: tuple[int, int], weights: Weights) -> tuple[str, ...]:
    """Return the paths that the kernels have for such weights on such a card."""
    if weights == "int4":
        return ("packed",)
    # The copy engine came with Hopper; what it does on later cards was never tried.
    return ("gathered", "streamed") if capability[0] == 9 else ("gathered",)


def tile_problem(tile: HeadTile, capability: tuple[int, int], weights: Weights = "int8") -> str:
    """Return why the kernels do not take a tile on such a card; empty when they do."""
    allowed = {
        "rows": ROW_CLASSES,
        "vocab": VOCAB_STEPS,
        "hidden": HIDDEN_STEPS if weights == "int8" else PACKED_HIDDEN_STEPS,
        "warps": WARPS,
        "stages": STAGES,
        "path": paths_for(capability, weights),
    }
    if problem := value_problem(tile, allowed):
        return problem
    if tile.path == "streamed" and (tile.warps % WGMMA_WARPS or tile.rows < 16):
        return "the streamed path takes 16 rows or more and 4 or 8 warps"
    return ""


def _file(key: HeadKey, folder: Path) -> TilesFile[tuple[HeadTile, ...]]:
    def checked(entries: list[Any]) -> tuple[HeadTile, ...]:
        return _checked(entries, key)

    return TilesFile(tuned_path(key, folder), asdict(key), checked)


def _checked(entries: list[Any], key: HeadKey) -> tuple[HeadTile, ...]:
    tiles = tuple(tile_of(entry, HeadTile, frozenset({"path"})) for entry in entries)
    for tile in tiles:
        if problem := tile_problem(tile, key.capability, key.weights):
            raise UnusableTilesError(f"a tile's {problem}")
    rows = [tile.rows for tile in tiles]
    if rows != sorted(set(rows)) or rows[0] != ROW_CLASSES[0] or rows[-1] < MUST_HAVE_ROWS:
        raise UnusableTilesError(
            f"its tiles have {rows} rows; they must ascend from {ROW_CLASSES[0]} "
            f"to {MUST_HAVE_ROWS} or more"
        )
    return tiles
