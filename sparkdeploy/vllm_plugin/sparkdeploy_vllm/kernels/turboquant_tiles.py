"""How the TurboQuant decode kernel is cut for a kind of GPU: data, with where each is from."""

from collections.abc import Iterable
from dataclasses import dataclass

from sparkdeploy_vllm.turboquant_format import SlotFormat

ROWS = 16
"""Query rows of a block and KV head; the kernel's own constant."""
OTHER_SHARED_BYTES = 4096
"""What the kernel and the driver take beside what is counted here, with room."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A block of `warps`, each of which takes `tokens` (16 or 32) of one KV head at a time.

    Pages pass through `stages` parts of shared memory.
    """

    tokens: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Tiles by preference for cards of one kind; the first that fits a layer is taken."""

    name: str
    shared_bytes: int
    tiles: tuple[AttentionTile, ...]
    origin: str


HOPPER = AttentionTiles(
    name="sm_90",
    shared_bytes=227 * 1024,
    tiles=(AttentionTile(16, 8, 2), AttentionTile(16, 4, 2)),
    origin="swept on an NVIDIA H100",
)
GB10 = AttentionTiles(
    name="sm_12x",
    shared_bytes=99 * 1024,
    tiles=tuple(AttentionTile(16, warps, stages) for warps in (4, 8) for stages in (4, 3, 2)),
    origin="derived from the card's sizes, not measured",
)
"""99 KB of shared memory, and bulk copies as Hopper has. Four warps hold three stages of a 122B's
pages; what is on its way then (33 KB or more for each of 48 multiprocessors) covers the memory's
latency (273 GB/s x 1 us, assumed, is 6 KB for each). No one has timed them on a GB10:
`python -m sparkdeploy_vllm.tune_head` does."""

SHIPPED = {9: HOPPER, 12: GB10}
"""By the major number of the compute capability; the kernel runs on no other card."""


def query_bytes(slot: SlotFormat, kv_heads: int, rows: int) -> int:
    """Shared memory of the queries: two rows of a tensor core lie together, 16 bytes apart."""
    pairs = min(8, rows)
    return -(-kv_heads * pairs * 2 * (slot.head_dim * 4 + 16) // 128) * 128


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


def fitting(
    tiles: Iterable[AttentionTile], limit: int, slot: SlotFormat, kv_heads: int, rows: int
) -> AttentionTile | None:
    """The first tile that fits."""
    return next((tile for tile in tiles if fits(tile, limit, slot, kv_heads, rows)), None)
