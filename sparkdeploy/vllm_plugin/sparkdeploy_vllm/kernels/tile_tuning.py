"""What every search for tiles has in common. Standard library; nothing that serves uses it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

MIN_GAIN = 0.01
"""What is less than 1 % faster than the tile that ships does not replace it."""
MOST_DRIFT = 0.03
"""How far two timings of one tile may be apart before none of them is believed."""

Tile = TypeVar("Tile")
TimedTile_contra = TypeVar("TimedTile_contra", contravariant=True)


class UnsteadyCardError(RuntimeError):
    """The same tile took different times: something else uses the card."""


class Stand(Protocol[TimedTile_contra]):
    def is_right(self, tile: TimedTile_contra, /) -> bool:
        """Whether the tile compiles and gives the exact result, twice the same."""

    def times_ms(self, tiles: Sequence[TimedTile_contra], size: int, rounds: int, /) -> list[float]:
        """Median milliseconds of each tile at a size (rows, or tokens of a context); they take
        turns, `rounds` times.
        """


@dataclass(frozen=True, slots=True)
class Card(Generic[Tile]):
    """What of a card decides which tiles are tried."""

    capability: tuple[int, int]
    shared_bytes: int
    """Most shared memory that one program may have."""
    shipped: tuple[Tile, ...]


def against_shipped(
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
