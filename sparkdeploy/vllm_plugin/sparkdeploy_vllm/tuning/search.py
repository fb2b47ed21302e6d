"""The search for the fastest tiles of a head and of attention. Nothing that serves uses it.

Standard library only: a `Stand` runs the tiles.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Protocol, TypeVar

from sparkdeploy_vllm.head import tiles as head
from sparkdeploy_vllm.head.tiles import HeadKey, HeadTile, tile_for
from sparkdeploy_vllm.tuning.tiles import Tuned
from sparkdeploy_vllm.turboquant import tiles as attention
from sparkdeploy_vllm.turboquant.tiles import AttentionKey, AttentionTile

MIN_GAIN = 0.01
"""What is less than 1 % faster than the tile that ships does not replace it."""
MOST_DRIFT = 0.03
"""How far two timings of one tile may be apart before none of them is believed."""
QUICK_ROUNDS = 5
FINALISTS = 3
FEW_ROWS = 16
CONTEXTS = (4 * 1024, 64 * 1024)
"""Tokens of a short and of a long context; attention's tile must pay over both."""

Tile = TypeVar("Tile")
TimedTile_contra = TypeVar("TimedTile_contra", contravariant=True)
Say = Callable[[str], None]


class UnsteadyCardError(RuntimeError):
    """The same tile took different times: something else uses the card."""


class Stand(Protocol[TimedTile_contra]):
    @property
    def shared_bytes(self) -> int:
        """Most shared memory that one program may have."""

    def is_right(self, tile: TimedTile_contra, /) -> bool:
        """Whether the tile compiles and gives the exact result, twice the same."""

    def times_ms(self, tiles: Sequence[TimedTile_contra], size: int, rounds: int, /) -> list[float]:
        """Median milliseconds of each tile at a size (rows, or tokens of a context); they take
        turns, `rounds` times.
        """


def head_candidates(key: HeadKey, rows: int, shared_bytes: int) -> Iterator[HeadTile]:
    # Few rows leave more than four warps nothing to do; many need the registers of four.
    warps = head.WARPS[:-1] if rows <= FEW_ROWS else head.WARPS[1:]
    for path in key.paths:
        for sizes in product(head.VOCAB_STEPS, head.HIDDEN_STEPS, warps, head.STAGES):
            tile = HeadTile(path, rows, *sizes)
            if not key.tile_problem(tile) and tile.shared_bytes <= shared_bytes:
                yield tile


def tune_head(
    key: HeadKey, stand: Stand[HeadTile], *, rounds: int, say: Say
) -> list[Tuned[HeadTile]]:
    """Return a tile for each class of rows; UnsteadyCardError for timings not to be believed."""
    won: list[Tuned[HeadTile]] = []
    for rows in head.ROW_CLASSES:
        shipped = tile_for(key.shipped().tiles, rows)
        right, tried = _right(shipped, head_candidates(key, rows, stand.shared_bytes), stand)
        # The key is asked once for each tile.
        ranked = sorted(right, key=lambda tile: stand.times_ms([tile], tile.rows, QUICK_ROUNDS)[0])
        finalists = ranked[:FINALISTS]
        if won and shipped.rows < rows and won[-1].tile != shipped:
            finalists.append(won[-1].tile)
        best = _fastest(shipped, finalists, (rows,), stand, rounds)
        _say_row(say, tried, shipped, best)
        # A tile of fewer rows than asked for takes them in turns, and is in the table already.
        if best.tile.rows == rows:
            won.append(best)
    return won


def attention_candidates(key: AttentionKey, shared_bytes: int) -> Iterator[AttentionTile]:
    limit = min(shared_bytes, attention.SHIPPED[key.capability[0]].shared_bytes)
    choices = (attention.TOKENS, attention.WARPS, attention.STAGES, attention.ROWS, attention.HEADS)
    for sizes in product(*choices):
        tile = AttentionTile(*sizes)
        if not key.tile_problem(tile, limit):
            yield tile


def tune_attention(
    key: AttentionKey, stand: Stand[AttentionTile], *, rounds: int, say: Say
) -> list[Tuned[AttentionTile]]:
    """Return the tile with the least sum, over the contexts, of its time by the shipped tile's.

    UnsteadyCardError for timings not to be believed, RuntimeError where what ships is wrong.
    """
    (shipped,) = key.shipped().tiles
    if not stand.is_right(shipped):
        raise RuntimeError(f"the tile that ships ({shipped}) gives wrong attention here")
    right, tried = _right(shipped, attention_candidates(key, stand.shared_bytes), stand)
    best = _fastest(shipped, right, CONTEXTS, stand, rounds)
    _say_row(say, tried, shipped, best)
    return [best]


def _right(shipped: Tile, candidates: Iterable[Tile], stand: Stand[Tile]) -> tuple[list[Tile], str]:
    """Return the rivals that give the exact result, and how many of them do, in words."""
    rivals = [tile for tile in candidates if tile != shipped]
    right = [tile for tile in rivals if stand.is_right(tile)]
    return right, f"{len(right)} of {len(rivals)}"


def _fastest(
    shipped: Tile, rivals: Sequence[Tile], sizes: Sequence[int], stand: Stand[Tile], rounds: int
) -> Tuned[Tile]:
    timed = {size: _against(shipped, rivals, size, stand, rounds) for size in sizes}
    shipped_ms = {size: ms for size, (ms, _) in timed.items()}

    def share(index: int) -> float:
        return sum(others[index] / ms for ms, others in timed.values())

    fastest = min(range(len(rivals)), key=share, default=None)
    if fastest is None or share(fastest) >= len(sizes) * (1 - MIN_GAIN):
        return Tuned(shipped, shipped_ms, shipped_ms)
    own_ms = {size: others[fastest] for size, (_, others) in timed.items()}
    return Tuned(rivals[fastest], own_ms, shipped_ms)


def _against(
    shipped: Tile, rivals: Sequence[Tile], size: int, stand: Stand[Tile], rounds: int
) -> tuple[float, list[float]]:
    """Return the shipped tile's milliseconds and its rivals'.

    It runs first and last: the two say how steady the card is.
    """
    first, *others, last = stand.times_ms([shipped, *rivals, shipped], size, rounds)
    shipped_ms = min(first, last)
    if abs(first - last) > MOST_DRIFT * shipped_ms:
        raise UnsteadyCardError(
            f"at size {size} the same tile took {first:.4f} and {last:.4f} ms; "
            "nothing else may use the card while it is tuned"
        )
    return shipped_ms, others


def _say_row(say: Say, tried: str, shipped: Tile, best: Tuned[Tile]) -> None:
    for size, ms in best.ms.items():
        before = f"{shipped} | {best.shipped_ms[size]:.5f}"
        say(f"| {size} | {tried} | {before} | {best.tile} | {ms:.5f} |")
