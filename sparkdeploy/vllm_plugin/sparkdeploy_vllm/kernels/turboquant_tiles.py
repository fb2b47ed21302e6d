"""How the TurboQuant decode kernel is cut for a kind of GPU: data, with where each is from."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sparkdeploy_vllm.turboquant_format import SlotFormat

ROWS = 16
"""Query rows of a block and KV head; the kernel's own constant."""
OTHER_SHARED_BYTES = 4096
"""What the kernel and the driver take beside what is counted here, with room."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A block of `warps`, each of which takes `tokens` (16 or 32) of one KV head at a time.

    Pages pass through `stages` parts of shared memory; the warps of each of `teams` meet the same
    ones. `sharing` warps hold a result's dimensions together. With one of `launches` the blocks of
    a request wait for each other and join their parts; with two a second kernel joins them.
    """

    tokens: int
    warps: int
    stages: int
    teams: int = 1
    sharing: int = 1
    launches: int = 2


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


def _cuts(tokens: int, sharing: int, launches: int) -> tuple[AttentionTile, ...]:
    """Teams as small as can be, each with two stages or more."""
    return tuple(
        AttentionTile(tokens, warps, each * teams, teams, sharing, launches)
        for warps in ((8, 4) if sharing == 1 else (16,))
        for teams in (4, 2, 1)
        for each in (3, 2)
    )


CUTS = {
    "shipped": HOPPER.tiles,
    "one launch": tuple(replace(tile, launches=1) for tile in HOPPER.tiles),
    "teams": _cuts(16, sharing=1, launches=2),
    "teams, one launch": _cuts(16, sharing=1, launches=1),
    "shared": _cuts(16, sharing=2, launches=2) + _cuts(16, sharing=1, launches=2),
    "shared, one launch": _cuts(16, sharing=2, launches=1) + _cuts(16, sharing=1, launches=1),
}
"""Ways to cut a block, of each the tiles by preference. All but the first were not timed on any
card yet, and none of them ships; to ship one, put its tiles in front of HOPPER's. Warps that share
have half of the result each, so that twice as many have room: four to a scheduler, not two. Keys
of FP8 leave too little shared memory for that; there, and with 64 dimensions, they do not share."""

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
    ring = tile.stages * tile.tokens * tile.warps // tile.teams * slot.slot_bytes
    joined = tile.warps * ROWS * (64 + 4) * 4
    return query_bytes(slot, kv_heads, rows) + max(ring, joined)


def traded_bytes(tile: AttentionTile) -> int:
    """Static shared memory of warps that share, which give each other weights and maxima. There are
    twice as many of them, so that the sums of each warp's rows count here as well.
    """
    return tile.warps * (tile.tokens // 16 * 1024 + 4 * ROWS * 4) if tile.sharing > 1 else 0


def fits(tile: AttentionTile, limit: int, slot: SlotFormat, kv_heads: int, rows: int) -> bool:
    """Whether a block of `limit` bytes holds the tile, and heads share its warps evenly."""
    used = shared_bytes(tile, slot, kv_heads, rows) + traded_bytes(tile) + OTHER_SHARED_BYTES
    return (
        tile.warps % (kv_heads * tile.teams * tile.sharing) == 0
        and slot.head_dim // 64 % tile.sharing == 0
        and tile.stages % tile.teams == 0
        and used <= limit
    )


def fitting(
    tiles: Iterable[AttentionTile], limit: int, slot: SlotFormat, kv_heads: int, rows: int
) -> AttentionTile | None:
    """The first tile that fits."""
    return next((tile for tile in tiles if fits(tile, limit, slot, kv_heads, rows)), None)
