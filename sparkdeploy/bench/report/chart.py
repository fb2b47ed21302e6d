"""What the page shows, before it is drawn: charts, the tables beneath them, and figures as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.load.record import Asking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.bench.quality.kept import QualityResult
    from sparkdeploy.bench.record import Cell, Run, SuiteResult, Summary
    from sparkdeploy.bench.report.table import Table

LOAD = "load"
"""The suite's name, in an open loop and of conversations."""
SMALLEST, LARGEST = 1e-9, 1e12
"""Nothing that is measured here is smaller or larger; a damaged record may say anything."""


class BarKind(Enum):
    MEASURED = "measured"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its 95 % interval where there is one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    series: int = 0
    """Which colour: a run has the same one in every chart."""
    kind: BarKind = BarKind.MEASURED


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Groups of bars along one axis that starts at zero."""

    title: str
    unit: str
    groups: tuple[Group, ...]

    @property
    def values(self) -> str:
        """Every bar in words, for those who do not see the picture."""
        told = (
            f"{group.title}: " + ", ".join(f"{bar.label} {bar.value:.1f}" for bar in group.bars)
            for group in self.groups
        )
        return f"{self.unit}. {'; '.join(told)}."


@dataclass(frozen=True, slots=True)
class Point:
    """A value over a condition; `low` and `high` are its interval or range."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One run's points, in ascending order of x."""

    label: str
    points: tuple[Point, ...]
    series: int = 0


class Scale(Enum):
    LINEAR = "linear"
    LOGARITHMIC = "logarithmic"


DECADES = 1.0
"""From here on equal differences are too small to see at one end of a linear axis."""


def scale_of(values: Iterable[float]) -> Scale:
    """Return the scale for an axis that would begin at zero: logarithmic over decades."""
    found = list(values)
    if not found or min(found) < SMALLEST or math.log10(max(found) / min(found)) < DECADES:
        return Scale.LINEAR
    return Scale.LOGARITHMIC


@dataclass(frozen=True, slots=True)
class LineChart:
    """A panel for each line, all over the same axes; there is a line, and each has a point."""

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    x_scale: Scale = Scale.LOGARITHMIC

    @property
    def y_scale(self) -> Scale:
        """As the points ask for it; an end of a range that is below them alone decides nothing."""
        return scale_of(point.y for line in self.lines for point in line.points)

    @property
    def values(self) -> str:
        """Every point in words, for those who do not see the picture."""
        told = (
            f"{line.label}: "
            + ", ".join(f"{point.y:.3g} at {condition(point.x)}" for point in line.points)
            for line in self.lines
        )
        return f"{self.y_title} by {self.x_title}. {'; '.join(told)}."


def condition(x: float) -> str:
    """Return 1024 as 1K; what is no multiple of it stays as it is."""
    return f"{x / 1024:g}K" if x >= 1024 and x % 1024 == 0 else f"{x:g}"


def plottable(value: float | None) -> bool:
    """Say whether a figure of a record can stand on an axis; not-a-number cannot."""
    return value is not None and 0 <= value <= LARGEST


@dataclass(frozen=True, slots=True)
class Section:
    """Charts and, beneath them, a table, in the words that sections.yaml has for them."""

    anchor: str
    heading: str
    explanation: str
    charts: tuple[BarChart | LineChart, ...]
    table: Table
    notes: tuple[str, ...]


def section_of(
    name: str,
    charts: tuple[BarChart | LineChart, ...],
    table: Table,
    notes: Iterable[str] = (),
) -> Section:
    told = {"anchor": name, **shipped("report/sections.yaml")[name]}
    return Section(**told, charts=charts, table=table, notes=tuple(notes))


def heading_of(name: str) -> str:
    return str(shipped("report/sections.yaml")[name]["heading"])


def title_of(kind: str, name: str) -> str:
    """Return what people read for one of the `prompts` or `figures` of a record."""
    return str(shipped("report/titles.yaml")[kind].get(name, name))


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
        """Empty for a bare URL."""
        return self.run.origin.recipe.name if self.run.origin.recipe is not None else ""

    def cells(self, suite: str) -> tuple[Cell, ...]:
        """Return a suite's cells; none of an open loop, whose figures are others."""
        found = self.run.suite(suite)
        is_closed = found is not None and found.asking is Asking.CLOSED_LOOP
        return found.cells if found is not None and is_closed else ()

    def load(self, asking: Asking) -> SuiteResult | None:
        """Return a load of this run, else the newest of its others: each is a record of its own."""
        found = (load_in(run, asking) for run in (self.run, *reversed(self.others)))
        return next((suite for suite in found if suite is not None), None)


def load_in(run: Run, asking: Asking) -> SuiteResult | None:
    return next((it for it in run.suites if it.name == LOAD and it.asking is asking), None)


def rate_of(cell: Cell) -> float:
    """Return the rate that was asked for; not-a-number for a cell of another suite."""
    return cell.load.rate_per_s if cell.load is not None else math.nan


def figure(value: float | None, digits: int = 1) -> str:
    return f"{value:,.{digits}f}" if value is not None and plottable(value) else "-"


def change(share: float, digits: int = 0) -> str:
    """Return `+3%`, `-3%` or `0%`: what rounds to nothing has no sign."""
    said = f"{share:+.{digits}%}"
    return said if any(digit in said for digit in "123456789") else said[1:]


def said_once(told: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each remark once, before it the names of all runs that it is about."""
    names: dict[str, list[str]] = {}
    for name, remark in told:
        names.setdefault(remark, []).append(name)
    yield from (f"{', '.join(found)}: {remark}" for remark, found in names.items())


def failed(cell: Cell) -> str:
    """Return how many requests failed; a table without failures has no row of them."""
    return str(cell.failures) if cell.failures else "-"


def with_interval(summary: Summary | None) -> str:
    """Return `49.2 ± 1.2`, or the mean alone where nothing more is known."""
    if summary is None:
        return "-"
    _, high = bounds(summary)
    return figure(summary.mean) + (f" ± {figure(high - summary.mean)}" if high is not None else "")


def bounds(summary: Summary) -> tuple[float | None, float | None]:
    """Return both ends or none: rounds that differ much give one below zero, where no figure is."""
    if summary.low95 is None or not plottable(summary.high95):
        return None, None
    low = max(summary.low95, 0.0)
    return (low, summary.high95) if plottable(low) else (None, None)
