"""How the TurboQuant decode kernel is cut for a kind of GPU: data, with where each is from."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
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

TILE_ROWS = 16
"""Query rows that a tensor core takes at once."""
OTHER_SHARED_BYTES = 1280
"""What the driver and barriers take beside what is counted here, with room."""
TOKENS = (16, 32)
WARPS = (8, 4)
STAGES = (2, 3, 4)
ROWS = (48, 32, 16)
HEADS = (1, 2, 4, 8)
TEAM_DIMENSIONS = 64
"""Of a warp at least; warps of a head beyond that take other tokens."""
MOST_RESULTS = 4
"""Results of 64 dimensions and 16 rows that a warp holds, 32 registers each."""
MOST_READINGS = 2
"""Blocks, each with heads of its own, that read the same pages."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A block of `warps`, each of which takes `tokens` (16 or 32) of a KV head at a time; it meets
    them with `rows` queries, and has `heads` KV heads.
    """

    tokens: int
    warps: int
    stages: int
    rows: int
    heads: int

    def __str__(self) -> str:
        sizes = f"{self.tokens} tokens, {self.warps} warps, {self.stages} stages"
        return f"{sizes}, {self.rows} rows of {self.heads} heads"

    def team(self, slot: SlotFormat) -> int:
        """Warps of a head that share tokens."""
        return min(self.warps // self.heads, slot.head_dim // TEAM_DIMENSIONS)

    @property
    def fixed_bytes(self) -> int:
        """Shared memory that no layer's sizes change: two numbers of each row."""
        return 4 * self.rows * (self.heads + self.warps) + OTHER_SHARED_BYTES

    def rows_for(self, wanted: int) -> int:
        """As many as `wanted`, in whole sixteens, but no more than the tile has."""
        return min(self.rows, -(-wanted // TILE_ROWS) * TILE_ROWS)


HOPPER = ShippedTiles(
    "sm_90",
    (
        *(AttentionTile(16, *it) for it in product(WARPS, (2,), (48, 32), HEADS)),
        AttentionTile(32, 8, 2, 16, 2),
        *(AttentionTile(16, *it) for it in product(WARPS, (2,), (16,), HEADS)),
    ),
    "swept on an NVIDIA H200",
    shared_bytes=227 * 1024,
)
GB10 = ShippedTiles(
    "sm_12x",
    tuple(
        AttentionTile(16, warps, stages, rows, heads)
        for rows, heads, warps, stages in product(ROWS, reversed(HEADS), WARPS, (4, 3, 2))
    ),
    "derived from the card's sizes, not measured",
    shared_bytes=99 * 1024,
)
"""99 KB of shared memory, and bulk copies as Hopper has. Most rows first, as unpacking takes the
time; then all heads in a block, so that pages are read once. What is on its way (16 KB or more for
each of 48 multiprocessors) covers the memory's latency (273 GB/s x 1 us, assumed, is 6 KB for
each). No one has timed them on a GB10: `python -m sparkdeploy_vllm.tune_head` does."""

SHIPPED = {9: HOPPER, 12: GB10}
"""By the major number of the compute capability; the kernel runs on no other card."""


def query_bytes(tile: AttentionTile, slot: SlotFormat, rows: int) -> int:
    """Shared memory of the queries: two rows of a tensor core lie together, 16 bytes apart."""
    pairs = min(TILE_ROWS // 2, rows) * tile.rows_for(rows) // TILE_ROWS
    return -(-tile.heads * pairs * (slot.head_dim * 4 + 16) // 128) * 128


def shared_bytes(tile: AttentionTile, slot: SlotFormat, kv_heads: int, rows: int) -> int:
    """Dynamic shared memory of a block: queries, weights of a round, and the ring of pages or, at
    the end, what a head's teams join.
    """
    held, tokens = tile.rows_for(rows), tile.tokens * tile.warps
    ring = tile.stages * tokens // tile.heads * kv_heads * slot.slot_bytes
    teams = tile.warps // tile.heads // tile.team(slot)
    joined = (teams - 1) * tile.heads * held * slot.head_dim * 4
    return query_bytes(tile, slot, rows) + tokens * held * 2 + max(ring, joined)


def fits(tile: AttentionTile, limit: int, slot: SlotFormat, kv_heads: int, rows: int) -> bool:
    """Whether a block of `limit` bytes holds the tile, and warps share heads and dimensions."""
    if kv_heads % tile.heads or kv_heads // tile.heads > MOST_READINGS or tile.warps % tile.heads:
        return False
    team, groups = tile.team(slot), slot.head_dim // TEAM_DIMENSIONS
    return (
        tile.rows_for(rows) == tile.rows
        and groups % team == 0
        and tile.warps // tile.heads % team == 0
        and groups // team * tile.rows // TILE_ROWS <= MOST_RESULTS
        and shared_bytes(tile, slot, kv_heads, rows) + tile.fixed_bytes <= limit
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
        return self.most_tokens * self.group

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
        if problem := value_problem(
            tile, {"tokens": TOKENS, "warps": WARPS, "stages": STAGES, "rows": ROWS, "heads": HEADS}
        ):
            return problem
        if not fits(tile, limit, self.slot, self.kv_heads, self.rows):
            return f"a tile of {tile} does not fit {self.kv_heads} KV heads and {limit} bytes"
        return ""


def kernel_fingerprint() -> str:
    return fingerprint(Path(__file__).with_name("decode.cu"))
