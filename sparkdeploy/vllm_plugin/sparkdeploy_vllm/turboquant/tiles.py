"""How the TurboQuant decode kernel is cut for a kind of GPU: data, with where each is from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sparkdeploy_vllm.tuning.tiles import (
    Choice,
    ShippedTiles,
    TilesKey,
    fingerprint,
    value_problem,
)
from sparkdeploy_vllm.turboquant.format import SlotFormat

ROWS = 16
"""Query rows of a block and KV head; the kernel's own constant."""
OTHER_SHARED_BYTES = 4096
"""What the kernel and the driver take beside what is counted here, with room."""
TOKENS = (16, 32)
WARPS = (4, 8)
STAGES = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A block of `warps`, each of which takes `tokens` (16 or 32) of one KV head at a time."""

    tokens: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.warps} warps, {self.stages} stages"


HOPPER = ShippedTiles(
    "sm_90",
    (AttentionTile(16, 8, 2), AttentionTile(16, 4, 2)),
    "swept on an NVIDIA H100",
    shared_bytes=227 * 1024,
)
GB10 = ShippedTiles(
    "sm_12x",
    tuple(AttentionTile(16, warps, stages) for warps in (4, 8) for stages in (4, 3, 2)),
    "derived from the card's sizes, not measured",
    shared_bytes=99 * 1024,
)
"""99 KB of shared memory, and bulk copies as Hopper has. Four warps hold four stages of a 122B's
pages; what is on its way then (50 KB or more for each of 48 multiprocessors) covers the memory's
latency (273 GB/s x 1 us, assumed, is 6 KB for each). No one has timed them on a GB10:
`python -m sparkdeploy_vllm.tune_head` does."""

SHIPPED = {9: HOPPER, 12: GB10}
"""By the major number of the compute capability; the kernel runs on no other card."""


def query_bytes(slot: SlotFormat, kv_heads: int, rows: int) -> int:
    """Shared memory of the queries: two rows of a tensor core lie together, 16 bytes apart."""
    pairs = min(8, rows)
    return -(-kv_heads * pairs * (slot.head_dim * 4 + 16) // 128) * 128


def shared_bytes(tile: AttentionTile, slot: SlotFormat, kv_heads: int, rows: int) -> int:
    """Dynamic shared memory of a block: queries, and the ring of pages or, at the end, at least 64
    dimensions that the warps join.
    """
    ring = tile.stages * tile.tokens * tile.warps * slot.slot_bytes
    joined = tile.warps * ROWS * (64 + 4) * 4
    return query_bytes(slot, kv_heads, rows) + max(ring, joined)


def fits(tile: AttentionTile, limit: int, slot: SlotFormat, kv_heads: int, rows: int) -> bool:
    """Whether a block of `limit` bytes holds the tile, and heads share its warps evenly."""
    return (
        tile.warps % kv_heads == 0
        and shared_bytes(tile, slot, kv_heads, rows) + OTHER_SHARED_BYTES <= limit
    )


def shipped_tile(major: int, slot: SlotFormat, kv_heads: int, rows: int) -> AttentionTile | None:
    """Return the first tile for cards of this compute capability that fits a layer."""
    table = SHIPPED[major]
    limit = table.shared_bytes
    return next((it for it in table.tiles if fits(it, limit, slot, kv_heads, rows)), None)


@dataclass(frozen=True, slots=True)
class AttentionKey(TilesKey[AttentionTile]):
    folder: ClassVar[str] = "turboquant-decode"
    tile_type: ClassVar[type] = AttentionTile

    key_bits: int
    value_bits: int
    head_dim: int
    kv_heads: int
    group: int
    most_tokens: int
    """Query tokens that a request may have: one, and those of a draft."""
    kernel: str
    nvrtc: str

    @property
    def subject(self) -> str:
        return "TurboQuant decodes by our kernel"

    @property
    def shape(self) -> str:
        heads = f"{self.kv_heads}x{self.group}x{self.head_dim}"
        return f"k{self.key_bits}v{self.value_bits}-{heads}-{self.most_tokens}"

    @property
    def slot(self) -> SlotFormat:
        return SlotFormat(self.key_bits, self.value_bits, self.head_dim)

    @property
    def rows(self) -> int:
        return min(ROWS, self.most_tokens * self.group)

    def shipped(self) -> Choice[AttentionTile]:
        tile = shipped_tile(self.capability[0], self.slot, self.kv_heads, self.rows)
        if tile is None:
            raise ValueError("no tile of the TurboQuant kernel fits this layer and card")
        table = SHIPPED[self.capability[0]]
        return Choice(self, "shipped", f"{table.name}: {table.origin}", (tile,))

    def problem(self, tiles: Sequence[AttentionTile]) -> str:
        if len(tiles) != 1:
            return f"it has {len(tiles)} tiles; a layer has one"
        return self.tile_problem(tiles[0], SHIPPED[self.capability[0]].shared_bytes)

    def tile_problem(self, tile: AttentionTile, limit: int) -> str:
        if problem := value_problem(tile, {"tokens": TOKENS, "warps": WARPS, "stages": STAGES}):
            return problem
        if not fits(tile, limit, self.slot, self.kv_heads, self.rows):
            return f"a tile of {tile} does not fit {self.kv_heads} KV heads and {limit} bytes"
        return ""


def kernel_fingerprint() -> str:
    return fingerprint(Path(__file__).with_name("decode.cu"))
