"""Groups of bars with their intervals, along one axis that starts at zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import BarKind
from sparkdeploy.bench.report.draw import (
    BOLD,
    FONT,
    SMALL,
    Linear,
    element,
    fitted,
    hint,
    picture,
    series_class,
    ticks,
    width_of,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.bench.report.chart import Bar, BarChart

ROW, BAR, HEADING, GAP = 16.0, 11.0, 20.0, 6.0
BARS_AXIS, BAR_TICK_EVERY = 20.0, 60.0


def draw_bars(chart: BarChart, width: float) -> str:
    """Every value must be plottable (`chart.plottable`), and there must be a bar."""
    bars = [bar for group in chart.groups for bar in group.bars]
    left = min(0.34 * width, max(width_of(bar.label, SMALL) for bar in bars) + 10.0)
    right = width - max(width_of(f"{bar.value:.1f}", FONT) for bar in bars) - 10.0
    rows_height = sum(HEADING + GAP + ROW * len(group.bars) for group in chart.groups)
    height = rows_height + 2 * BARS_AXIS
    largest = max(max(bar.value, bar.high or 0.0) for bar in bars) or 1.0
    axis = Linear(largest, left, right)
    about = max(int((right - left) / BAR_TICK_EVERY), 2)
    marks = [mark for mark in ticks(largest, about) if mark <= largest]
    parts = [
        words(f"{mark:g}", axis.place(mark), baseline, class_="tick", text_anchor="middle")
        for mark in marks
        for baseline in (SMALL, height - BARS_AXIS + SMALL)
    ]
    top = BARS_AXIS
    for group in chart.groups:
        parts += _heading(group.title, chart.unit, top + FONT + 2, width)
        top += HEADING
        for mark in marks:
            path = f"M{axis.place(mark):.2f} {top:.2f}V{top + ROW * len(group.bars):.2f}"
            parts.append(element("path", d=path, class_="axis" if mark == 0 else "grid"))
        for bar in group.bars:
            parts += _row(bar, axis, top, chart.unit)
            top += ROW
        top += GAP
    return picture(chart.title, chart.values, parts, width, height)


def _heading(title: str, unit: str, baseline: float, width: float) -> Iterator[str]:
    """Yield a group's title and, at the other end, the unit of its bars."""
    room = width - width_of(unit, SMALL) - 12
    yield words(fitted(title, room, FONT * BOLD), 2.0, baseline, class_="group")
    yield words(unit, width - 2, baseline, class_="tick", text_anchor="end")


def _row(bar: Bar, axis: Linear, top: float, unit: str) -> Iterator[str]:
    middle = top + ROW / 2
    baseline = middle + FONT / 3
    label = fitted(bar.label, axis.start - 8, SMALL)
    yield words(label, axis.start - 8, baseline, class_=f"name {bar.kind.value}", text_anchor="end")
    end = axis.place(bar.value)
    yield element(
        "rect",
        hint(f"{bar.label}: {bar.value:.1f} {unit}{_interval(bar)}"),
        x=axis.start,
        y=top + (ROW - BAR) / 2,
        width=end - axis.start,
        height=BAR,
        class_=f"bar {bar.kind.value} {series_class(bar.series)}",
    )
    if bar.low is not None and bar.high is not None:
        low, high = axis.place(bar.low), axis.place(bar.high)
        whisker = f"M{low:.2f} {middle:.2f}H{high:.2f}"
        for at in (low, high):
            whisker += f"M{at:.2f} {middle - 4:.2f}V{middle + 4:.2f}"
        yield element("path", d=whisker, class_="interval")
        end = max(end, high)
    yield words(f"{bar.value:.1f}", end + 6, baseline, class_=f"value {bar.kind.value}")


def _interval(bar: Bar) -> str:
    if bar.low is None or bar.high is None:
        return ", as published" if bar.kind is BarKind.PUBLISHED else ""
    return f", 95 % interval {bar.low:.1f} to {bar.high:.1f}"
