"""Tile sizes of the INT8 head per kind of GPU and number of rows: a table, nothing is tuned."""

from dataclasses import dataclass
from typing import Literal

Path = Literal["gathered", "streamed"]
"""How tiles reach shared memory: by per-thread copies, or by the copy engine Hopper brought."""


@dataclass(frozen=True, slots=True)
class HeadTile:
    """What one program computes: `rows` x `vocab` logits, `hidden` elements of K at a time."""

    path: Path
    rows: int
    vocab: int
    hidden: int
    warps: int
    stages: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the staged tiles, an upper bound: INT8 weights, 16-bit activations."""
        return self.stages * self.hidden * (self.vocab + 2 * self.rows)


HOPPER = (
    HeadTile("gathered", rows=8, vocab=64, hidden=256, warps=2, stages=3),
    HeadTile("gathered", rows=16, vocab=128, hidden=256, warps=4, stages=2),
    HeadTile("streamed", rows=32, vocab=128, hidden=256, warps=4, stages=3),
    HeadTile("streamed", rows=64, vocab=128, hidden=64, warps=4, stages=3),
    HeadTile("streamed", rows=128, vocab=128, hidden=64, warps=4, stages=4),
)
"""Swept on an H200 (docs/figures/int8-head-h200.md)."""

COMPACT = (
    HeadTile("gathered", rows=8, vocab=64, hidden=256, warps=2, stages=3),
    HeadTile("gathered", rows=16, vocab=64, hidden=256, warps=4, stages=2),
    HeadTile("gathered", rows=32, vocab=64, hidden=128, warps=4, stages=3),
    HeadTile("gathered", rows=64, vocab=128, hidden=64, warps=4, stages=3),
)
"""For cards with 99 KB of shared memory and no wgmma: GB10 (SM121), GeForce. NOT measured: chosen
so that two programs fit a multiprocessor; a GB10's memory is slow enough for any of them."""


def tiles_for(capability: tuple[int, int]) -> tuple[HeadTile, ...]:
    """The tiles of a GPU of compute capability `capability`, by ascending `rows`."""
    return HOPPER if capability[0] == 9 else COMPACT


def tile_for(capability: tuple[int, int], rows: int) -> HeadTile:
    """The smallest tile that holds `rows` (at least 1) at once, else the largest there is."""
    tiles = tiles_for(capability)
    return next((tile for tile in tiles if tile.rows >= rows), tiles[-1])
