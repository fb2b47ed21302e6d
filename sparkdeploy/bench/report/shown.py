"""The runs of the page, and what its sections are made of: tables, bars and plots."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sparkdeploy.bench.compare import asked_of
from sparkdeploy.bench.quality.comparison import QualityResult
from sparkdeploy.bench.record import Cell, Run, SuiteResult

Key = TypeVar("Key", bound="Hashable")
Value = TypeVar("Value")
# Places of a plot are per cent of it; the page stretches it to the screen's width, letters aside.
INSET = 4.0
"""Between the plot's edge and its first point, in per cent."""
LABEL_EVERY = 13.0
"""Numbers of the x axis that are nearer to one another are left out: a phone has no place."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MARKS = 4
LOAD = "load"
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run under the name and the colour that it has on the whole page."""

    run: Run
    name: str
    series: int
    others: tuple[Run, ...] = ()
    """Further runs of the very same, oldest first."""
    quality: QualityResult | None = None

    @property
    def recipe(self) -> str:
        """The recipe's name; empty for a bare URL."""
        return self.run.origin.recipe.name if self.run.origin.recipe is not None else ""

    def cells(self, suite: str) -> tuple[Cell, ...]:
        found = self.run.suite(suite)
        return found.cells if found is not None else ()

    @property
    def load(self) -> SuiteResult | None:
        """The load of this run, else the newest of its others: each is a record of its own."""
        found = (run.suite(LOAD) for run in (self.run, *reversed(self.others)))
        return next((suite for suite in found if suite is not None and suite.loads), None)


def alike(runs: Sequence[ShownRun]) -> list[tuple[ShownRun, SuiteResult]]:
    """Return the runs whose load was asked as the first one's was, each with its load."""
    loaded = [(shown, suite) for shown in runs if (suite := shown.load) is not None]
    return [pair for pair in loaded if asked_of(pair[1]) == asked_of(loaded[0][1])]


def common_rate(suites: Sequence[SuiteResult]) -> float | None:
    """Return the highest rate that all have."""
    rates = [{load.rate_per_s for load in suite.loads} for suite in suites]
    return max(set.intersection(*rates), default=None) if rates else None


class Bar(NamedTuple):
    """A figure with a bar beneath it; `percent` is of the table's largest figure."""

    text: str
    percent: float
    is_published: bool = False


Row = tuple[str, tuple[str | Bar, ...]]
Groups = Sequence[tuple[str, Sequence[Row]]]
"""Rows under a title, which may be empty."""


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
        self.y_marks = [Mark(self._up(value), f"{value:g}") for value in self._ticks]
        self.x_marks: list[Mark] = []
        for x in self._xs:
            place = self._across(x)
            if not self.x_marks or place - self.x_marks[-1].place >= LABEL_EVERY:
                self.x_marks.append(Mark(place, in_thousands(x)))

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


def in_thousands(tokens: float) -> str:
    """Return 1024 as 1K; what is no multiple of it stays as it is."""
    return f"{tokens / 1024:g}K" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:g}"


class Section(NamedTuple):
    """A table with the plots above it; sections.yaml has its heading and explanation."""

    name: str
    corner: str
    runs: Sequence[ShownRun]
    groups: Groups
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()


def across(
    by_run: Sequence[Mapping[Key, Value]],
    head: Callable[[Key], str],
    text: Callable[[Value], str | Bar],
) -> list[Row]:
    """Return a row for each condition that any run has, in the order in which they come."""
    rows = (
        (head(key), tuple(text(cells[key]) if key in cells else NOTHING for cells in by_run))
        for key in dict.fromkeys(key for cells in by_run for key in cells)
    )
    return [row for row in rows if set(row[1]) != {NOTHING}]


def with_names(remarks: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each remark once, before it the names of all runs that it is about."""
    names: dict[str, list[str]] = {}
    for name, remark in remarks:
        names.setdefault(remark, []).append(name)
    yield from (f"{', '.join(runs)}: {remark}" for remark, runs in names.items())
