"""What the page shows, before it is drawn: charts, the tables beneath them, and figures as text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.load.record import Asking

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sparkdeploy.bench.record import Cell, Run, Summary

LARGEST = 1e12
"""Nothing that is measured here is larger; a damaged record may say anything."""


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


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over a logarithmic x axis and a y axis that starts at zero."""

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    thousands: bool = False
    """Write x as 1K, 4K, 256K (of 1024)."""


def plottable(value: float | None) -> bool:
    """Say whether a figure of a record can stand on an axis; not-a-number cannot."""
    return value is not None and 0 <= value <= LARGEST


@dataclass(frozen=True, slots=True)
class Section:
    """Charts and, beneath them, rows of text, in the words that sections.yaml has for them."""

    anchor: str
    heading: str
    explanation: str
    columns: Sequence[str]
    charts: tuple[BarChart | LineChart, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    text_columns: int = 2
    """The columns after these hold numbers and stand to the right."""


def section_of(
    name: str,
    charts: tuple[BarChart | LineChart, ...],
    rows: Iterable[tuple[str, ...]],
    notes: Iterable[str] = (),
) -> Section:
    told = {"anchor": name, **shipped("report/sections.yaml")[name]}
    return Section(**told, charts=charts, rows=tuple(rows), notes=tuple(notes))


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

    @property
    def recipe(self) -> str:
        """Empty for a bare URL."""
        return self.run.origin.recipe.name if self.run.origin.recipe is not None else ""

    def cells(self, suite: str) -> tuple[Cell, ...]:
        """Return a suite's cells; none of an open loop, whose figures are others."""
        found = self.run.suite(suite)
        is_closed = found is not None and found.asking is Asking.CLOSED_LOOP
        return found.cells if found is not None and is_closed else ()


def figure(value: float | None, digits: int = 1) -> str:
    return f"{value:,.{digits}f}" if value is not None and plottable(value) else "-"


def change(share: float, digits: int = 0) -> str:
    """Return `+3%`, `-3%` or `0%`: what rounds to nothing has no sign."""
    said = f"{share:+.{digits}%}"
    return said if any(digit in said for digit in "123456789") else said[1:]


def interval(summary: Summary | None) -> str:
    low, high = bounds(summary) if summary is not None else (None, None)
    return "-" if low is None else f"{figure(low)} to {figure(high)}"


def bounds(summary: Summary) -> tuple[float | None, float | None]:
    """Return both ends or none: rounds that differ much give one below zero, where no figure is."""
    if summary.low95 is None or not plottable(summary.high95):
        return None, None
    low = max(summary.low95, 0.0)
    return (low, summary.high95) if plottable(low) else (None, None)
