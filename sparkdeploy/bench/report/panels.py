"""Small multiples: a panel for each line over the same axes, the other lines in grey behind it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import Scale, condition
from sparkdeploy.bench.report.draw import (
    BOLD,
    SMALL,
    Linear,
    Logarithmic,
    element,
    fitted,
    hint,
    logarithmic_ticks,
    picture,
    series_class,
    thin,
    ticks,
    width_of,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.report.chart import Line, LineChart, Point

LEAST_WIDTH = 150.0
"""Of a panel."""
FEW_HEIGHT, HEIGHT_SHARE = 170.0, 0.54
"""Of a panel's plot: alone or as one of two, and among others, of its width."""
TITLE, FOOT, GAP, UNITS = 20.0, 24.0, 14.0, 18.0
TICK_EVERY, LINE_EVERY, INSET, MARK, MARGIN = 8.0, 16.0, 10.0, 3.0, 3.0
Axis = Linear | Logarithmic


@dataclass(frozen=True, slots=True)
class Grid:
    """Where panels stand, in the order of their lines."""

    columns: int
    left: float
    """Room for the numbers of the y axis, before the first column."""
    width: float
    """Of one panel."""
    height: float
    """Of one panel's plot."""

    def corner(self, index: int) -> tuple[float, float]:
        """Return the upper left of a panel's plot."""
        row, column = divmod(index, self.columns)
        left = self.left + column * (self.width + GAP)
        return left, UNITS + TITLE + row * (TITLE + self.height + FOOT)


def draw_lines(chart: LineChart, width: float) -> str:
    """Every y must be plottable and every x, on a logarithmic axis, positive."""
    marks = _marks(chart)
    grid = _grid(len(chart.lines), marks, width)
    rows = math.ceil(len(chart.lines) / grid.columns)
    height = UNITS + rows * (TITLE + grid.height + FOOT) + SMALL + 4
    parts = [words(fitted(_y_title(chart), width - 4, SMALL), 2.0, SMALL, class_="tick")]
    for index, line in enumerate(chart.lines):
        parts += _panel(chart, line, marks, grid, index)
    under = fitted(chart.x_title, width - grid.left, SMALL)
    middle = (grid.left + width) / 2
    parts.append(words(under, middle, height - 4, class_="tick", text_anchor="middle"))
    return picture(chart.title, chart.values, parts, width, height)


def _y_title(chart: LineChart) -> str:
    told = ", log" if chart.y_scale is Scale.LOGARITHMIC else ""
    return chart.y_title + told


def _marks(chart: LineChart) -> tuple[float, ...]:
    points = [point for line in chart.lines for point in line.points]
    highest = max(max(point.y, point.high or 0.0) for point in points)
    if chart.y_scale is Scale.LINEAR:
        return ticks(highest, 4)
    return logarithmic_ticks(min(point.y for point in points), highest)


def _grid(panels: int, marks: Sequence[float], width: float) -> Grid:
    left = max(width_of(f"{mark:g}", SMALL) for mark in marks) + 8.0
    most = max(int((width - left) / LEAST_WIDTH), 1)
    # As even as can be: five panels are three and two, not four and one.
    columns = math.ceil(panels / math.ceil(panels / most))
    own = (width - left - MARGIN - GAP * (columns - 1)) / columns
    return Grid(columns, left, own, HEIGHT_SHARE * own if panels > 2 else FEW_HEIGHT)


def _panel(
    chart: LineChart, line: Line, marks: Sequence[float], grid: Grid, index: int
) -> Iterator[str]:
    left, top = grid.corner(index)
    right, bottom = left + grid.width, top + grid.height
    up = _up(chart, marks, bottom, top)
    across = _across(chart, left + INSET, right - INSET)
    class_ = f"name {series_class(line.series)}"
    yield words(fitted(line.label, grid.width - 4, SMALL * BOLD), left, top - 7, class_=class_)
    places = [up.place(mark) for mark in marks]
    # From below; the highest ones may have no room for their number.
    numbered = thin([bottom - place for place in places], LINE_EVERY)
    for at, (mark, y) in enumerate(zip(marks, places, strict=True)):
        path = f"M{left:.2f} {y:.2f}H{right:.2f}"
        yield element("path", d=path, class_="axis" if at == 0 else "grid")
        if index % grid.columns == 0 and at in numbered:
            number = f"{mark:g}"
            yield words(number, left - 5, y + SMALL / 3, class_="tick", text_anchor="end")
    yield from _conditions(chart, across, bottom + SMALL + 4)
    for other in chart.lines:
        if other is not line:
            yield element("path", d=_path(other.points, across, up), class_="peer")
    yield from _line(chart, line, across, up)


def _up(chart: LineChart, marks: Sequence[float], bottom: float, top: float) -> Axis:
    if chart.y_scale is Scale.LINEAR:
        return Linear(marks[-1], bottom, top)
    return Logarithmic(marks[0], marks[-1], bottom, top)


def _across(chart: LineChart, left: float, right: float) -> Axis:
    found = [point.x for line in chart.lines for point in line.points]
    if chart.x_scale is Scale.LINEAR:
        return Linear(max(found), left, right)
    return Logarithmic(min(found), max(found), left, right)


def _conditions(chart: LineChart, across: Axis, baseline: float) -> Iterator[str]:
    """Yield the numbers of the x axis that have room, those of the most lines before others."""
    counts = Counter(point.x for line in chart.lines for point in line.points)
    taken: list[tuple[float, float]] = []
    for x in sorted(counts, key=lambda found: (-counts[found], found)):
        half = width_of(condition(x), SMALL) / 2
        # Those at the ends stay within their panel.
        place = max(across.place(x), across.start - INSET + half)
        place = min(place, across.end + INSET - half)
        low, high = place - half - TICK_EVERY, place + half + TICK_EVERY
        if all(high <= start or low >= end for start, end in taken):
            yield words(condition(x), place, baseline, class_="tick", text_anchor="middle")
            taken.append((place - half, place + half))


def _path(points: Sequence[Point], across: Axis, up: Axis) -> str:
    return "M" + "L".join(f"{across.place(it.x):.2f} {up.place(it.y):.2f}" for it in points)


def _line(chart: LineChart, line: Line, across: Axis, up: Axis) -> Iterator[str]:
    run = series_class(line.series)
    yield element("path", d=_path(line.points, across, up), class_=f"line {run}")
    for point in line.points:
        x, y = across.place(point.x), up.place(point.y)
        if point.low is not None and point.high is not None:
            low, high = _end(up, point.low), up.place(point.high)
            yield element("path", d=f"M{x:.2f} {low:.2f}V{high:.2f}", class_=f"range {run}")
        said = f"{line.label}: {point.y:.4g} {chart.y_title} at {condition(point.x)}"
        dot = hint(f"{said} {chart.x_title}")
        yield element("circle", dot, cx=x, cy=y, r=MARK, class_=f"mark {run}")


def _end(up: Axis, low: float) -> float:
    """Return where a range begins; nothing has no place on a logarithmic axis but its end."""
    return up.place(low) if low > 0 else up.start
