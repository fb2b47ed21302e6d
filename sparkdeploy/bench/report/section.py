"""A chart and the table beneath it, as the page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import plottable

if TYPE_CHECKING:
    from sparkdeploy.bench.record import Run, Summary
    from sparkdeploy.bench.report.chart import BarChart, LineChart


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; columns after `text_columns` hold numbers and stand to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 2


@dataclass(frozen=True, slots=True)
class Section:
    """One question and its answer."""

    anchor: str
    heading: str
    explanation: str
    charts: tuple[BarChart | LineChart, ...]
    table: Table
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """A run under the name and the colour that it has on the whole page."""

    run: Run
    name: str
    series: int

    @property
    def recipe(self) -> str:
        """Return the recipe's name, empty for a bare URL."""
        return self.run.origin.recipe.name if self.run.origin.recipe is not None else ""


def figure(value: float | None, digits: int = 1) -> str:
    """Return a figure of a record as the tables write it."""
    return f"{value:,.{digits}f}" if value is not None and plottable(value) else "-"


def interval(summary: Summary | None, digits: int = 1) -> str:
    """Return a 95 % interval as the tables write it."""
    low, high = bounds(summary) if summary is not None else (None, None)
    return "-" if low is None else f"{figure(low, digits)} to {figure(high, digits)}"


def bounds(summary: Summary) -> tuple[float | None, float | None]:
    """Return the interval's ends for a chart: both or none.

    Few rounds that differ much give an interval below zero, where no figure of ours can be.
    """
    if summary.low95 is None or not plottable(summary.high95):
        return None, None
    low = max(summary.low95, 0.0)
    return (low, summary.high95) if plottable(low) else (None, None)
