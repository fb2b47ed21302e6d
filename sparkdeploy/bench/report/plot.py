"""Plots of one figure over a condition: a polyline a run, on axes of HTML.

Places are per cent of the plot, which the page stretches to the screen's width: letters keep their
size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from sparkdeploy.bench.report.shown import in_thousands

if TYPE_CHECKING:
    from collections.abc import Sequence

INSET = 4.0
"""Between the plot's edge and its first point, in per cent."""
LABEL_EVERY = 13.0
"""Numbers of the x axis that are nearer to one another are left out: a phone has no place."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MARKS = 4


class Line(NamedTuple):
    """One run's points (x, y), in ascending order of x."""

    name: str
    series: int
    points: Sequence[tuple[float, float]]


class Mark(NamedTuple):
    """A number of an axis, and where it stands."""

    place: float
    text: str


class Plot:
    """All lines over the same axes; there is a line, and each has a point. x is logarithmic."""

    def __init__(self, title: str, x_title: str, y_title: str, lines: Sequence[Line]) -> None:
        self.title, self.x_title, self.y_title, self.lines = title, x_title, y_title, lines
        self._xs = sorted({x for line in lines for x, _ in line.points})
        values = [y for line in lines for _, y in line.points]
        # Over decades equal differences are too small to see at one end of a linear axis.
        self.is_logarithmic = min(values) > 0 and max(values) >= 10 * min(values)
        self._ticks = _decades(values) if self.is_logarithmic else _round_steps(max(values))

    @property
    def y_marks(self) -> list[Mark]:
        return [Mark(self._up(value), f"{value:g}") for value in self._ticks]

    @property
    def x_marks(self) -> list[Mark]:
        marks: list[Mark] = []
        for x in self._xs:
            place = self._across(x)
            if not marks or place - marks[-1].place >= LABEL_EVERY:
                marks.append(Mark(place, in_thousands(x)))
        return marks

    def marks(self, line: Line) -> list[tuple[float, float, str]]:
        """Return where each point is, from the left and from above, and what it says."""
        return [
            (
                round(self._across(x), 2),
                round(100 - self._up(y), 2),
                f"{line.name}: {y:.4g} {self.y_title} at {in_thousands(x)} {self.x_title}",
            )
            for x, y in line.points
        ]

    @property
    def words(self) -> str:
        """Every point in words, for those who do not see the picture."""
        lines = (
            f"{line.name}: {', '.join(f'{y:.3g} at {in_thousands(x)}' for x, y in line.points)}"
            for line in self.lines
        )
        return f"{self.title}: {self.y_title} by {self.x_title}. {'; '.join(lines)}."

    def _up(self, value: float) -> float:
        low, high = self._ticks[0], self._ticks[-1]
        if self.is_logarithmic:
            return 100 * math.log(value / low) / math.log(high / low)
        return 100 * (value - low) / (high - low)

    def _across(self, x: float) -> float:
        low, high = self._xs[0], self._xs[-1]
        share = math.log(x / low) / math.log(high / low) if high > low else 0.5
        return INSET + (100 - 2 * INSET) * share


def _decades(values: Sequence[float]) -> list[float]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, high + 1)]


def _round_steps(highest: float) -> list[float]:
    """Return nothing and about four multiples of a round number, the last of them the highest."""
    if highest <= 0:
        return [0.0, 1.0]
    magnitude = 10.0 ** math.floor(math.log10(highest / _MARKS))
    steps = (unit * magnitude for unit in _STEPS)
    step = next(step for step in steps if step * _MARKS >= highest * (1 - 1e-9))
    return [step * number for number in range(max(math.ceil(highest / step - 1e-9), 1) + 1)]
