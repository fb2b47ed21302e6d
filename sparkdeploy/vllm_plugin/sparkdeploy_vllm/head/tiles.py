"""Tiles of the INT8 and INT4 heads: those that ship, with where each is from, and which can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from sparkdeploy_vllm.tuning.tiles import (
    Choice,
    ShippedTiles,
    TilesKey,
    fingerprint,
    value_problem,
)

LoadPath = Literal["gathered", "streamed", "packed"]
"""How tiles reach shared memory: by per-thread copies, or by the copy engine Hopper brought; INT4,
two codes a byte, by per-thread copies."""
Weights = Literal["int8", "int4"]

ROW_CLASSES = (8, 16, 32, 64, 128)
"""`rows` that a tile may have. The first is 8 for all cards: one request with speculation (3 rows)
and without (1 row) must share a tile, or the text could differ."""
MUST_HAVE_ROWS = 64
"""Up to here the weights are read once."""
VOCAB_STEPS = (64, 128)
HIDDEN_STEPS = (64, 128, 256)
WARPS = (2, 4, 8)
STAGES = (2, 3, 4)
WGMMA_WARPS = 4
_SOURCES = {"int8": ("int8_kernel.py",), "int4": ("int8_kernel.py", "int4_kernel.py")}
"""INT4's kernel uses parts of INT8's."""


@dataclass(frozen=True, slots=True)
class HeadTile:
    """What one program computes: `rows` x `vocab` logits, `hidden` elements of K at a time."""

    path: LoadPath
    rows: int
    vocab: int
    hidden: int
    warps: int
    stages: int

    def __str__(self) -> str:
        sizes = f"{self.rows}x{self.vocab}x{self.hidden}"
        return f"{self.path} {sizes}, {self.warps} warps, {self.stages} stages"

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the staged tiles, an upper bound: weights and 16-bit activations."""
        weights = self.hidden * self.vocab // (2 if self.path == "packed" else 1)
        return self.stages * (weights + 2 * self.hidden * self.rows)


HOPPER = ShippedTiles(
    "sm_90",
    (
        HeadTile("gathered", rows=8, vocab=64, hidden=256, warps=2, stages=3),
        HeadTile("gathered", rows=16, vocab=128, hidden=256, warps=4, stages=2),
        HeadTile("streamed", rows=32, vocab=128, hidden=256, warps=4, stages=3),
        HeadTile("streamed", rows=64, vocab=128, hidden=64, warps=4, stages=3),
        HeadTile("streamed", rows=128, vocab=128, hidden=64, warps=4, stages=4),
    ),
    "swept on an NVIDIA H200",
)
"""Triton 3.6, 248,320 x 3,072 and x 2,048. Each tile's share of the copy bandwidth's speed stands
in docs/figures/int8-head-h200.md; the head inside vLLM in docs/figures/plugin-h200.md."""

_COMPACT = (
    HeadTile("gathered", rows=8, vocab=64, hidden=256, warps=2, stages=3),
    HeadTile("gathered", rows=16, vocab=64, hidden=256, warps=4, stages=2),
    HeadTile("gathered", rows=32, vocab=64, hidden=128, warps=4, stages=3),
    HeadTile("gathered", rows=64, vocab=128, hidden=64, warps=4, stages=3),
)

GB10 = ShippedTiles("sm_12x", _COMPACT, "derived from the card's sizes, not measured")
"""GB10 (SM121) and its relatives: no wgmma, 99 KB of shared memory for a program. Derived: two of
them fit one multiprocessor (compiled for sm_121 each needs at most 41 KB, without spills), and what
the two have asked for covers the memory's latency (273 GB/s x 1 us, assumed, over 48
multiprocessors is 5.7 KB; these have 32 KB). The results are right on an H200. No one has timed
them on a GB10: `python -m sparkdeploy_vllm.tune_head` does."""

DEFAULT = ShippedTiles("default", _COMPACT, "for any card, not measured on one of this kind")
"""The smallest needs: plain copies, tensor cores of Ampere, 41 KB of shared memory."""

_PACKED = (
    HeadTile("packed", rows=8, vocab=128, hidden=128, warps=4, stages=4),
    HeadTile("packed", rows=16, vocab=128, hidden=128, warps=4, stages=4),
    HeadTile("packed", rows=32, vocab=128, hidden=128, warps=4, stages=3),
    HeadTile("packed", rows=64, vocab=128, hidden=128, warps=8, stages=3),
)

PACKED = {
    9: ShippedTiles("sm_90", _PACKED, "derived from INT8's, not measured"),
    12: ShippedTiles(GB10.name, _PACKED, GB10.origin),
    0: ShippedTiles(DEFAULT.name, _PACKED, DEFAULT.origin),
}
"""INT4's, the same for every card. Derived: compiled for sm_90 and sm_121 each needs at most 66 KB
of shared memory and spills nothing, and at up to 16 rows what two programs have asked for (48 KB)
covers a GB10's latency as INT8's tiles do. 128 words rather than 64 halve how often activations,
which weigh twice as much beside INT4, are read from the L2 cache."""

SHIPPED: dict[Weights, dict[int, ShippedTiles[HeadTile]]] = {
    "int8": {9: HOPPER, 12: GB10, 0: DEFAULT},
    "int4": PACKED,
}
"""By the major number of the compute capability; 0: what every other card gets."""


@dataclass(frozen=True, slots=True)
class HeadKey(TilesKey[HeadTile]):
    folder: ClassVar[str] = "int8-head"
    tile_type: ClassVar[type] = HeadTile

    vocab: int
    """Rows of the matrix on one rank, padding included."""
    hidden: int
    kernel: str
    triton: str
    weights: Weights = "int8"

    @property
    def subject(self) -> str:
        return f"{self.weights.upper()} head {self.vocab} x {self.hidden}"

    @property
    def shape(self) -> str:
        return f"{self.vocab}x{self.hidden}" + ("" if self.weights == "int8" else "-int4")

    @property
    def paths(self) -> tuple[LoadPath, ...]:
        if self.weights == "int4":
            return ("packed",)
        # The copy engine came with Hopper; what it does on later cards was never tried.
        return ("gathered", "streamed") if self.capability[0] == 9 else ("gathered",)

    def shipped(self) -> Choice[HeadTile]:
        table = shipped_for(self.capability, self.weights)
        if table.name == DEFAULT.name:
            return Choice(self, "default", table.origin, table.tiles)
        return Choice(self, "shipped", f"{table.name}: {table.origin}", table.tiles)

    def problem(self, tiles: Sequence[HeadTile]) -> str:
        rows = [tile.rows for tile in tiles]
        if rows != sorted(set(rows)) or rows[:1] != [8] or rows[-1] < MUST_HAVE_ROWS:
            return f"its tiles have {rows} rows; they must ascend from 8 to 64 or more"
        return next((why for tile in tiles if (why := self.tile_problem(tile))), "")

    def tile_problem(self, tile: HeadTile) -> str:
        # A step of INT4 is a group of 128 inputs, or several.
        hidden = HIDDEN_STEPS if self.weights == "int8" else HIDDEN_STEPS[1:]
        sizes = {"rows": ROW_CLASSES, "vocab": VOCAB_STEPS, "hidden": hidden}
        how = {"warps": WARPS, "stages": STAGES, "path": self.paths}
        if problem := value_problem(tile, {**sizes, **how}):
            return problem
        if tile.path == "streamed" and (tile.warps % WGMMA_WARPS or tile.rows < 16):
            return "the streamed path takes 16 rows or more and 4 or 8 warps"
        return ""


def kernel_fingerprint(weights: Weights = "int8") -> str:
    return fingerprint(*(Path(__file__).with_name(name) for name in _SOURCES[weights]))


def shipped_for(capability: tuple[int, int], weights: Weights = "int8") -> ShippedTiles[HeadTile]:
    return SHIPPED[weights].get(capability[0], SHIPPED[weights][0])


def tile_for(tiles: Sequence[HeadTile], rows: int) -> HeadTile:
    """Return the smallest tile that holds `rows` at once, else the largest there is."""
    return next((tile for tile in tiles if tile.rows >= rows), tiles[-1])
