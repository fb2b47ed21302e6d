"""The search for the TurboQuant kernel's fastest tile. Standard library; nothing that serves uses
it.
"""

from collections.abc import Callable, Iterator
from itertools import product

from sparkdeploy_vllm.kernels.tile_tuning import MIN_GAIN, Card, Stand, against_shipped
from sparkdeploy_vllm.kernels.turboquant_tiles import AttentionTile, fits
from sparkdeploy_vllm.kernels.turboquant_tiles_file import (
    STAGES,
    TOKENS,
    WARPS,
    AttentionKey,
    TunedAttention,
    tile_problem,
)

CONTEXTS = (4 * 1024, 64 * 1024)
"""Tokens of a short and of a long context; a tile must pay over both."""


class WrongTileError(RuntimeError):
    """The tile that ships gives no exact attention here."""


def candidates(key: AttentionKey, card: Card[AttentionTile]) -> Iterator[AttentionTile]:
    for sizes in product(TOKENS, WARPS, STAGES):
        tile = AttentionTile(*sizes)
        if not tile_problem(tile, key) and fits(
            tile, card.shared_bytes, key.slot, key.kv_heads, key.rows
        ):
            yield tile


def tune(
    key: AttentionKey,
    card: Card[AttentionTile],
    stand: Stand[AttentionTile],
    *,
    rounds: int,
    say: Callable[[str], None],
) -> TunedAttention:
    """Return the tile with the least sum, over the contexts, of its time by the shipped tile's.

    UnsteadyCardError for timings not to be believed, WrongTileError where what ships is wrong.
    """
    (shipped,) = card.shipped
    if not stand.is_right(shipped):
        raise WrongTileError(f"the tile that ships ({name(shipped)}) gives wrong attention here")
    rivals = [tile for tile in candidates(key, card) if tile != shipped]
    right = [tile for tile in rivals if stand.is_right(tile)]
    timed = {
        context: against_shipped(shipped, right, context, stand, rounds) for context in CONTEXTS
    }
    best = _best(shipped, right, timed)
    tried = f"{len(right)} of {len(rivals)}"
    for context in CONTEXTS:
        before = f"{name(shipped)} | {best.shipped_ms[context]:.5f}"
        say(f"| {context} | {tried} | {before} | {name(best.tile)} | {best.ms[context]:.5f} |")
    return best


def name(tile: AttentionTile) -> str:
    return f"{tile.tokens} tokens, {tile.warps} warps, {tile.stages} stages"


def _best(
    shipped: AttentionTile,
    right: list[AttentionTile],
    timed: dict[int, tuple[float, list[float]]],
) -> TunedAttention:
    shipped_ms = {context: ms for context, (ms, _) in timed.items()}

    def share(index: int) -> float:
        return sum(others[index] / ms for ms, others in timed.values())

    fastest = min(range(len(right)), key=share, default=None)
    if fastest is None or share(fastest) >= len(timed) * (1 - MIN_GAIN):
        return TunedAttention(shipped, shipped_ms, shipped_ms)
    own_ms = {context: others[fastest] for context, (_, others) in timed.items()}
    return TunedAttention(right[fastest], own_ms, shipped_ms)
