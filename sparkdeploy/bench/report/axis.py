"""From values to places on an axis. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST = 1e-9
"""What is smaller counts as nothing: no figure of a benchmark is."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Linear:
    """An axis from zero to `top`, over places `start` to `end` (which may run backwards)."""

    top: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value stands; what lies beyond the axis stands at its end."""
        return self.start + (self.end - self.start) * min(max(value / self.top, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """An axis from `low` to `high`, both positive; equal ratios are equal distances."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value stands; a single one stands in the middle."""
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)


def ticks(largest: float, about: int) -> tuple[float, ...]:
    """Return round numbers from 0 to the first one not below `largest`, roughly `about` of them."""
    if largest < LEAST:
        return (0.0, 1.0)
    raw = largest / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(unit for unit in _STEPS if unit * magnitude >= raw * (1 - 1e-9)) * magnitude
    count = math.ceil(largest / step - 1e-9)
    return tuple(step * index for index in range(count + 1))


def spread(places: Sequence[float], *, apart: float, low: float, high: float) -> list[float]:
    """Return places near the given ones, in the same order, at least `apart` where there is room.

    Pushes down from the top, then up from the bottom; all stay between `low` and `high`.
    """
    gap = min(apart, (high - low) / max(len(places) - 1, 1))
    order = sorted(range(len(places)), key=lambda index: places[index])
    found = list(places)
    floor = low
    for index in order:
        found[index] = floor = max(found[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        found[index] = ceiling = max(min(found[index], ceiling), low)
        ceiling -= gap
    return found


def thin(places: Iterable[float], apart: float) -> list[int]:
    """Return the indices of ascending places that keep `apart` from the one kept before."""
    kept: list[int] = []
    last = -math.inf
    for index, place in enumerate(places):
        if place - last >= apart:
            kept.append(index)
            last = place
    return kept
