"""How much a figure differs between runs of the same, and what a difference is worth beside that.

Figures are compared as logarithms: speeds and times differ by factors. A run is one observation,
however many rounds it has, for its rounds share whatever its start decided. Deviations from the
means of groups of like runs are pooled: `s^2 = sum of squares / degrees`, and the interval of a
difference is `t s sqrt(1/n + 1/m)` (Student's t with the pooled degrees; any textbook's two-sample
t-test with a common variance).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sparkdeploy.bench.figures import t_quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class DifferenceVerdict(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    NONE = "no difference shown"
    UNKNOWN = "not known: one run a side"


@dataclass(frozen=True, slots=True)
class Spread:
    """The variation between runs of the same, pooled over groups."""

    squares: float
    """Sum of squared deviations of logarithms from their group's mean."""
    degrees: int

    @property
    def deviation(self) -> float | None:
        """The standard deviation of a run's logarithm: 0.01 is one per cent. None if unknown."""
        return math.sqrt(self.squares / self.degrees) if self.degrees else None


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """One figure of one side over the other's, with its 95 % interval where it has one."""

    ratio: float
    low95: float | None
    high95: float | None

    @property
    def verdict(self) -> DifferenceVerdict:
        if self.low95 is None or self.high95 is None:
            return DifferenceVerdict.UNKNOWN
        if self.low95 <= 1 <= self.high95:
            return DifferenceVerdict.NONE
        return DifferenceVerdict.HIGHER if self.low95 > 1 else DifferenceVerdict.LOWER


def spread_of(groups: Iterable[Sequence[float]]) -> Spread:
    """Pool groups of logarithms; a group of one run says nothing about variation."""
    squares, degrees = 0.0, 0
    for group in groups:
        if len(group) > 1:
            mean = statistics.fmean(group)
            squares += math.fsum((value - mean) ** 2 for value in group)
            degrees += len(group) - 1
    return Spread(squares, degrees)


def ratio_of(base: Sequence[float], other: Sequence[float], spread: Spread) -> RatioEstimate:
    """Return other / base of runs' logarithms; neither is empty."""
    difference = statistics.fmean(other) - statistics.fmean(base)
    deviation = spread.deviation
    if deviation is None:
        return RatioEstimate(math.exp(difference), None, None)
    scale = math.sqrt(1 / len(base) + 1 / len(other))
    half = t_quantile(spread.degrees) * deviation * scale
    low, high = math.exp(difference - half), math.exp(difference + half)
    return RatioEstimate(math.exp(difference), low, high)
