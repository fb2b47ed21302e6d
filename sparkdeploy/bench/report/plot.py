"""Plots of one figure over a condition: a polyline a run, on axes of HTML.

Places are per cent of the plot, which the page stretches to the screen's width: letters keep their
size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sparkdeploy.bench.report.table import in_thousands

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INSET = 4.0
"""Between the plot's edge and its first point, in per cent."""
LABEL_EVERY = 13.0
"""Numbers of the x axis that are nearer to one another are left out: a phone has no place."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MARKS = 4


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    """One run's points, in ascending order of x."""

    name: str
    series: int
    points: Sequence[Point]


class Mark(NamedTuple):
    """A number of an axis, and where it stands."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """All lines over the same axes; there is a line, and each has a point. x is logarithmic."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]

    @property
    def is_logarithmic(self) -> bool:
        """Over decades equal differences are too small to see at one end of a linear axis."""
        return min(self._values) > 0 and max(self._values) >= 10 * min(self._values)

    @property
    def _values(self) -> list[float]:
        return [point.y for line in self.lines for point in line.points]

    @property
    def _ends(self) -> tuple[float, float]:
        """The ends of the y axis, round numbers."""
        low, high = min(self._values), max(self._values)
        if not self.is_logarithmic:
            return 0.0, step_of(high) * max(math.ceil(high / step_of(high) - 1e-9), 1)
        return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))

    @property
    def y_marks(self) -> list[Mark]:
        low, high = self._ends
        if self.is_logarithmic:
            powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
            values = [10.0**power for power in powers]
        else:
            values = [step_of(high) * at for at in range(round(high / step_of(high)) + 1)]
        return [Mark(self._up(value), f"{value:g}") for value in values]

    @property
    def x_marks(self) -> list[Mark]:
        marks: list[Mark] = []
        for x in sorted({point.x for line in self.lines for point in line.points}):
            place = self._across(x)
            if not marks or place - marks[-1].place >= LABEL_EVERY:
                marks.append(Mark(place, in_thousands(x)))
        return marks

    def marks(self, line: Line) -> Iterator[tuple[float, float, str]]:
        """Yield where each point is, from the left and from above, and what it says."""
        for x, y in line.points:
            at = f"{in_thousands(x)} {self.x_title}"
            hint = f"{line.name}: {y:.4g} {self.y_title} at {at}"
            yield round(self._across(x), 2), round(100 - self._up(y), 2), hint

    @property
    def words(self) -> str:
        """Every point in words, for those who do not see the picture."""
        lines = (
            f"{line.name}: "
            + ", ".join(f"{point.y:.3g} at {in_thousands(point.x)}" for point in line.points)
            for line in self.lines
        )
        return f"{self.title}: {self.y_title} by {self.x_title}. {'; '.join(lines)}."

    def _up(self, value: float) -> float:
        low, high = self._ends
        if self.is_logarithmic:
            return 100 * math.log(value / low) / math.log(high / low)
        return 100 * (value - low) / (high - low)

    def _across(self, x: float) -> float:
        conditions = [point.x for line in self.lines for point in line.points]
        low, high = min(conditions), max(conditions)
        share = math.log(x / low) / math.log(high / low) if high > low else 0.5
        return INSET + (100 - 2 * INSET) * share


def step_of(highest: float) -> float:
    """Return a round number of which about four reach the highest value."""
    if highest <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(highest / _MARKS))
    return next(
        unit * magnitude for unit in _STEPS if unit * magnitude * _MARKS >= highest * (1 - 1e-9)
    )
