"""The TurboQuant kernel's tuned tile in the cache folder: what it is for, and what it can be."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparkdeploy_vllm.kernels.tiles_file import (
    TilesFile,
    UnusableTilesError,
    cache_folder,
    file_name,
    fingerprint,
    tile_of,
    value_problem,
)
from sparkdeploy_vllm.kernels.turboquant_tiles import ROWS, SHIPPED, AttentionTile, fits
from sparkdeploy_vllm.turboquant_format import SlotFormat

TOKENS = (16, 32)
WARPS = (4, 8)
STAGES = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class AttentionKey:
    """What a tuned tile was made for; anything else may be slower, wrong, or not fit."""

    card: str
    capability: tuple[int, int]
    key_bits: int
    value_bits: int
    head_dim: int
    kv_heads: int
    """On one rank."""
    group: int
    """Query heads that share a KV head."""
    most_tokens: int
    """Query tokens that a request may have: one, and those of a draft."""
    kernel: str
    """Fingerprint of the kernel's source."""
    nvrtc: str
    """Release of the compiler."""

    @property
    def subject(self) -> str:
        return "TurboQuant decodes by our kernel"

    @property
    def slot(self) -> SlotFormat:
        return SlotFormat(self.key_bits, self.value_bits, self.head_dim)

    @property
    def rows(self) -> int:
        """Query rows that a block holds for each KV head."""
        return min(ROWS, self.most_tokens * self.group)


@dataclass(frozen=True, slots=True)
class TunedAttention:
    """The tile that won; milliseconds of it and of the tile that ships, by a context's tokens."""

    tile: AttentionTile
    ms: Mapping[int, float]
    shipped_ms: Mapping[int, float]


def kernel_fingerprint() -> str:
    return fingerprint("turboquant_decode.cu")


def tuned_folder(environment: Mapping[str, str] = os.environ) -> Path:
    return cache_folder("turboquant-decode", environment)


def tuned_path(key: AttentionKey, folder: Path) -> Path:
    """Return the file of a card and a layer; one for a newer kernel takes its place."""
    heads = f"{key.kv_heads}x{key.group}x{key.head_dim}"
    shape = f"k{key.key_bits}v{key.value_bits}-{heads}-{key.most_tokens}"
    return folder / file_name(key.card, key.capability, shape)


def read_tuned(key: AttentionKey, folder: Path) -> AttentionTile | None:
    """Return None where there is none, and raise UnusableTilesError for a file that cannot be
    read, is broken or was made for another card, layer, kernel or compiler.
    """
    return _file(key, folder).read()


def write_tuned(
    key: AttentionKey, tuned: TunedAttention, made_with: Mapping[str, str], folder: Path
) -> Path:
    """A reader sees the old file or the new; UnusableTilesError for what it would refuse."""
    entry = {
        **asdict(tuned.tile),
        "ms": _rounded(tuned.ms),
        "shipped_ms": _rounded(tuned.shipped_ms),
    }
    return _file(key, folder).write([entry], made_with)


def tile_problem(tile: AttentionTile, key: AttentionKey) -> str:
    """Return why the kernel does not take a tile for such a layer; empty when it does."""
    if problem := value_problem(tile, {"tokens": TOKENS, "warps": WARPS, "stages": STAGES}):
        return problem
    shipped = SHIPPED.get(key.capability[0])
    if shipped is None:
        return "card is none that the kernel runs on"
    if tile.warps % key.kv_heads:
        return f"{tile.warps} warps cannot be shared by {key.kv_heads} KV heads"
    if not fits(tile, shipped.shared_bytes, key.slot, key.kv_heads, key.rows):
        return f"shared memory is more than the {shipped.shared_bytes} bytes of such a card"
    return ""


def _file(key: AttentionKey, folder: Path) -> TilesFile[AttentionTile]:
    def checked(entries: list[Any]) -> AttentionTile:
        if len(entries) != 1:
            raise UnusableTilesError(f"it has {len(entries)} tiles; a layer has one")
        tile = tile_of(entries[0], AttentionTile)
        if problem := tile_problem(tile, key):
            raise UnusableTilesError(f"its tile's {problem}")
        return tile

    return TilesFile(tuned_path(key, folder), asdict(key), checked)


def _rounded(by_context: Mapping[int, float]) -> dict[str, float]:
    return {str(context): round(ms, 5) for context, ms in by_context.items()}
