"""The search for a head's fastest tiles. Standard library; nothing that serves uses it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from sparkdeploy_vllm.kernels.head_configs import PATHS, HeadTile, Weights, tile_for
from sparkdeploy_vllm.kernels.head_tiles_file import (
    HIDDEN_STEPS,
    ROW_CLASSES,
    STAGES,
    VOCAB_STEPS,
    WARPS,
    TunedTile,
    tile_problem,
)
from sparkdeploy_vllm.kernels.tile_tuning import MIN_GAIN, Card, Stand, against_shipped

QUICK_ROUNDS = 5
FINALISTS = 3
FEW_ROWS = 16


def candidates(rows: int, card: Card[HeadTile]) -> Iterator[HeadTile]:
    # Few rows leave more than four warps nothing to do; many need the registers of four.
    few, many = WARPS[:-1], WARPS[1:]
    warps = few if rows <= FEW_ROWS else many
    weights: Weights = "int4" if card.shipped[0].path == "packed" else "int8"
    for path in PATHS:
        for sizes in product(VOCAB_STEPS, HIDDEN_STEPS, warps, STAGES):
            tile = HeadTile(path, rows, *sizes)
            if tile_problem(tile, card.capability, weights):
                continue
            if tile.shared_bytes <= card.shared_bytes:
                yield tile


def tune(
    card: Card[HeadTile], stand: Stand[HeadTile], *, rounds: int, say: Callable[[str], None]
) -> tuple[TunedTile, ...]:
    """Return a tile for each class of rows; UnsteadyCardError for timings not to be believed."""
    won: list[TunedTile] = []
    for rows in ROW_CLASSES:
        shipped = tile_for(card.shipped, rows)
        rivals = [tile for tile in candidates(rows, card) if tile != shipped]
        right = [tile for tile in rivals if stand.is_right(tile)]
        # The key is asked once for each tile.
        ranked = sorted(right, key=lambda tile: stand.times_ms([tile], tile.rows, QUICK_ROUNDS)[0])
        finalists = ranked[:FINALISTS]
        if won and shipped.rows < rows and won[-1].tile != shipped:
            finalists.append(won[-1].tile)
        best = _final(shipped, finalists, rows, stand, rounds)
        say(
            f"| {rows} | {len(right)} of {len(rivals)} | {_name(shipped)} | {best.shipped_ms:.4f} "
            f"| {_name(best.tile)} | {best.ms:.4f} |"
        )
        # A tile of fewer rows than asked for takes them in turns, and is in the table already.
        if best.tile.rows == rows:
            won.append(best)
    return tuple(won)


def _final(
    shipped: HeadTile, finalists: Sequence[HeadTile], rows: int, stand: Stand[HeadTile], rounds: int
) -> TunedTile:
    shipped_ms, others = against_shipped(shipped, finalists, rows, stand, rounds)
    ms, index = min(zip(others, range(len(others)), strict=True), default=(shipped_ms, 0))
    if ms < shipped_ms * (1 - MIN_GAIN):
        return TunedTile(finalists[index], ms, shipped_ms)
    return TunedTile(shipped, shipped_ms, shipped_ms)


def _name(tile: HeadTile) -> str:
    sizes = f"{tile.rows}x{tile.vocab}x{tile.hidden}"
    return f"{tile.path} {sizes}, {tile.warps} warps, {tile.stages} stages"
