"""Groups of horizontal bars as SVG: the label before each bar, the value behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.report import svg
from sparkdeploy.bench.report.axis import Linear, ticks
from sparkdeploy.bench.report.chart import Kind
from sparkdeploy.bench.report.palette import series_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.report.chart import Bar, BarChart

FONT, SMALL = 13.0, 12.0
ROW, BAR, HEADING, GAP = 22.0, 14.0, 24.0, 10.0
TOP, AXIS = 6.0, 44.0
TICK_EVERY = 60.0


def draw_bars(chart: BarChart, width: float) -> str:
    """Return the chart `width` user units wide; its height follows from the number of bars.

    Every value must be plottable (`chart.plottable`), and there must be a bar.
    """
    bars = [bar for group in chart.groups for bar in group.bars]
    left = min(0.34 * width, max(svg.width_of(bar.label, SMALL) for bar in bars) + 10.0)
    right = width - max(svg.width_of(_value(bar, chart), FONT) for bar in bars) - 10.0
    height = TOP + sum(HEADING + GAP + ROW * len(group.bars) for group in chart.groups) + AXIS
    largest = max(max(bar.value, bar.high or 0.0) for bar in bars) or 1.0
    axis = Linear(largest, left, right)
    marks = [mark for mark in ticks(largest, _tick_count(right - left)) if mark <= largest]
    parts = [svg.hint(chart.title), *_axis_texts(axis, marks, height, chart.unit)]
    top = TOP
    for group in chart.groups:
        title = svg.fitted(group.title, width - 4, FONT)
        parts.append(svg.words(title, 2.0, top + FONT + 2, class_="group"))
        top += HEADING
        parts += _grid(axis, marks, top, top + ROW * len(group.bars))
        for bar in group.bars:
            parts += _row(bar, axis, top, chart)
            top += ROW
        top += GAP
    return svg.element(
        "svg",
        "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=svg.printable(chart.title),
        class_="chart",
    )


def _row(bar: Bar, axis: Linear, top: float, chart: BarChart) -> Iterator[str]:
    middle = top + ROW / 2
    baseline = middle + FONT / 3
    label = svg.fitted(bar.label, axis.start - 8, SMALL)
    yield svg.words(
        label, axis.start - 8, baseline, class_=f"name {bar.kind.value}", text_anchor="end"
    )
    end = axis.place(bar.value)
    said = f"{bar.label}: {_value(bar, chart)} {chart.unit}{_interval(bar, chart)}"
    yield svg.element(
        "rect",
        svg.hint(said),
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
        yield svg.element("path", d=whisker, class_="interval")
        end = max(end, high)
    yield svg.words(_value(bar, chart), end + 6, baseline, class_=f"value {bar.kind.value}")


def _grid(axis: Linear, marks: Sequence[float], top: float, bottom: float) -> Iterator[str]:
    for mark in marks:
        path = f"M{axis.place(mark):.2f} {top:.2f}V{bottom:.2f}"
        yield svg.element("path", d=path, class_="axis" if mark == 0 else "grid")


def _axis_texts(axis: Linear, marks: Sequence[float], height: float, unit: str) -> Iterator[str]:
    baseline = height - AXIS + 14
    for mark in marks:
        yield svg.words(
            f"{mark:g}", axis.place(mark), baseline, class_="tick", text_anchor="middle"
        )
    yield svg.words(unit, axis.start, baseline + 18, class_="tick")


def _tick_count(room: float) -> int:
    return max(int(room / TICK_EVERY), 2)


def _value(bar: Bar, chart: BarChart) -> str:
    return f"{bar.value:.{chart.digits}f}"


def _interval(bar: Bar, chart: BarChart) -> str:
    if bar.low is None or bar.high is None:
        return ", as published" if bar.kind is Kind.PUBLISHED else ""
    return f", 95 % interval {bar.low:.{chart.digits}f} to {bar.high:.{chart.digits}f}"
