"""Charts as SVG: axes, colours, groups of bars, lines over a condition.

The colours stay apart for every kind of colour vision, after Okabe and Ito, "Color Universal
Design" (2008); the lighter ones are darkened on white and the darker ones lightened on black until
each has 3:1 against its ground (WCAG 2.1, 1.4.11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from sparkdeploy.bench.report.chart import BarKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.bench.report.chart import Bar, BarChart, Line, LineChart

SERIES: tuple[tuple[str, str], ...] = (
    ("#0072b2", "#4aa3df"),
    ("#d55e00", "#f08a3c"),
    ("#009e73", "#22c197"),
    ("#b8609a", "#dd94c0"),
    ("#3a3a3a", "#e4e4e4"),
    ("#a07000", "#e6b020"),
    ("#4d8fbb", "#8fd0f5"),
    ("#7d6b00", "#f0e442"),
)
"""Of each run on light and on dark ground; a ninth run begins again."""
LIGHT_GROUND, DARK_GROUND = "#ffffff", "#14171b"
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 2", "12 3", "1 2", "6 2 1 2")
MARKERS: tuple[tuple[tuple[float, float], ...], ...] = (
    (),
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, -1.2), (1.2, 1), (-1.2, 1)),
)
"""The corners of a mark, none for a circle: colour is never the only difference of two lines."""
LEAST = 1e-9
"""What is smaller counts as nothing: no figure of a benchmark is."""
CHARACTER_WIDTH = 0.6
"""Of the font's size; a little more than the mean of the usual system fonts."""
FONT, SMALL = 13.0, 12.0
ROW, BAR, HEADING, GAP = 22.0, 14.0, 24.0, 10.0
BARS_TOP, BARS_AXIS, BAR_TICK_EVERY = 6.0, 44.0, 60.0
PLOT_HEIGHT, PLOT_TOP, PLOT_BOTTOM = 220.0, 30.0, 46.0
LABEL_EVERY, TICK_EVERY, MARK = 15.0, 28.0, 3.5
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Linear:
    """An axis from zero to `top`, over places `start` to `end` (which may run backwards)."""

    top: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """What lies beyond the axis stands at its end."""
        return self.start + (self.end - self.start) * min(max(value / self.top, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """An axis from `low` to `high`, both positive; equal ratios are equal distances."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)


def draw_bars(chart: BarChart, width: float) -> str:
    """Every value must be plottable (`chart.plottable`), and there must be a bar."""
    bars = [bar for group in chart.groups for bar in group.bars]
    left = min(0.34 * width, max(width_of(bar.label, SMALL) for bar in bars) + 10.0)
    right = width - max(width_of(f"{bar.value:.1f}", FONT) for bar in bars) - 10.0
    rows_height = sum(HEADING + GAP + ROW * len(group.bars) for group in chart.groups)
    height = BARS_TOP + rows_height + BARS_AXIS
    largest = max(max(bar.value, bar.high or 0.0) for bar in bars) or 1.0
    axis = Linear(largest, left, right)
    about = max(int((right - left) / BAR_TICK_EVERY), 2)
    marks = [mark for mark in ticks(largest, about) if mark <= largest]
    baseline = height - BARS_AXIS + 14
    parts = [
        words(f"{mark:g}", axis.place(mark), baseline, class_="tick", text_anchor="middle")
        for mark in marks
    ]
    parts.append(words(chart.unit, axis.start, baseline + 18, class_="tick"))
    top = BARS_TOP
    for group in chart.groups:
        title = fitted(group.title, width - 4, FONT)
        parts.append(words(title, 2.0, top + FONT + 2, class_="group"))
        top += HEADING
        for mark in marks:
            path = f"M{axis.place(mark):.2f} {top:.2f}V{top + ROW * len(group.bars):.2f}"
            parts.append(element("path", d=path, class_="axis" if mark == 0 else "grid"))
        for bar in group.bars:
            parts += _row(bar, axis, top, chart.unit)
            top += ROW
        top += GAP
    return _picture(chart.title, parts, width, height)


def draw_lines(chart: LineChart, width: float) -> str:
    """Every x must be positive, every y plottable, and there must be a point."""
    points = [point for line in chart.lines for point in line.points]
    plot_height = max(PLOT_HEIGHT, LABEL_EVERY * len(chart.lines))
    marks = ticks(max(max(point.y, point.high or 0.0) for point in points), 5)
    left = max(width_of(f"{mark:g}", SMALL) for mark in marks) + 10.0
    names = min(0.32 * width, max(width_of(line.label, SMALL) for line in chart.lines) + 26.0)
    along = [point.x for point in points]
    across = Logarithmic(min(along), max(along), left + 12, width - names - 8)
    up = Linear(marks[-1], PLOT_TOP + plot_height, PLOT_TOP)
    parts = [*_y_axis(chart, across, up, marks, width), *_x_axis(chart, across, up, width)]
    for line in chart.lines:
        parts += _line(line, across, up, chart)
    parts += _names(chart.lines, across, up, width)
    return _picture(chart.title, parts, width, PLOT_TOP + plot_height + PLOT_BOTTOM)


def series_class(index: int) -> str:
    return f"series-{index % len(SERIES)}"


def ticks(largest: float, about: int) -> tuple[float, ...]:
    """Return round numbers from 0 to the first one not below `largest`, roughly `about` of them."""
    if largest < LEAST:
        return (0.0, 1.0)
    raw = largest / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(unit for unit in _STEPS if unit * magnitude >= raw * (1 - 1e-9)) * magnitude
    count = math.ceil(largest / step - 1e-9)
    return tuple(step * index for index in range(count + 1))


def spread(places: Sequence[float], *, apart: float, low: float, high: float) -> list[float]:
    """Return places in the same order from `low` to `high`, `apart` where there is room."""
    gap = min(apart, (high - low) / max(len(places) - 1, 1))
    order = sorted(range(len(places)), key=lambda index: places[index])
    found = list(places)
    floor = low
    for index in order:
        found[index] = floor = max(found[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        found[index] = ceiling = max(min(found[index], ceiling), low)
        ceiling -= gap
    return found


def thin(places: Iterable[float], apart: float) -> list[int]:
    """Return the indices of ascending places that keep `apart` from the one kept before."""
    kept: list[int] = []
    last = -math.inf
    for index, place in enumerate(places):
        if place - last >= apart:
            kept.append(index)
            last = place
    return kept


def element(name: str, content: str = "", **attributes: object) -> str:
    """`content` is SVG already; attributes are escaped, `font_size=12` becomes `font-size="12"`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_plain(value))}"
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def words(text: str, x: float, y: float, **attributes: object) -> str:
    return element("text", escape(printable(text)), x=x, y=y, **attributes)


def hint(text: str) -> str:
    """Return what a pointer over the element shows, and a screen reader says."""
    return element("title", escape(printable(text)))


def fitted(text: str, width: float, size: float) -> str:
    room = max(int(width / (size * CHARACTER_WIDTH)), 1)
    clean = printable(text)
    return clean if len(clean) <= room else clean[: max(room - 1, 0)].rstrip() + "…"


def width_of(text: str, size: float) -> float:
    return len(text) * size * CHARACTER_WIDTH


def printable(text: str) -> str:
    """Return the text without control characters and lone surrogates, which XML forbids."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return printable(str(value))


def _picture(title: str, parts: Sequence[str], width: float, height: float) -> str:
    return element(
        "svg",
        hint(title) + "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=title,
        class_="chart",
    )


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


def _line(line: Line, across: Logarithmic, up: Linear, chart: LineChart) -> Iterator[str]:
    run = series_class(line.series)
    places = [(across.place(point.x), up.place(point.y)) for point in line.points]
    path = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in places)
    yield element("path", d=path, class_=f"line {run}")
    for point, (x, y) in zip(line.points, places, strict=True):
        if point.low is not None and point.high is not None:
            low, high = up.place(point.low), up.place(point.high)
            yield element("path", d=f"M{x:.2f} {low:.2f}V{high:.2f}", class_=f"range {run}")
        at = f"{_condition(point.x, chart)} {chart.x_title}"
        said = hint(f"{line.label}: {point.y:.4g} {chart.y_title} at {at}")
        yield _mark(line, (x, y), said)


def _mark(line: Line, place: tuple[float, float], said: str = "") -> str:
    x, y = place
    named = f"mark {series_class(line.series)}"
    outline = MARKERS[line.series % len(MARKERS)]
    if not outline:
        return element("circle", said, cx=x, cy=y, r=MARK, class_=named)
    corners = " ".join(f"{x + MARK * dx:.2f},{y + MARK * dy:.2f}" for dx, dy in outline)
    return element("polygon", said, points=corners, class_=named)


def _names(lines: tuple[Line, ...], across: Logarithmic, up: Linear, width: float) -> Iterator[str]:
    ends = [(across.place(line.points[-1].x), up.place(line.points[-1].y)) for line in lines]
    heights = spread([y for _, y in ends], apart=LABEL_EVERY, low=up.end, high=up.start)
    column = across.end + 18
    for line, (x, y), height in zip(lines, ends, heights, strict=True):
        leader = f"M{x + 5:.2f} {y:.2f}L{column - 6:.2f} {height:.2f}"
        yield element("path", d=leader, class_="leader")
        yield _mark(line, (column, height))
        label = fitted(line.label, width - column - 10, SMALL)
        yield words(label, column + 8, height + SMALL / 3, class_="name")


def _y_axis(
    chart: LineChart, across: Logarithmic, up: Linear, marks: tuple[float, ...], width: float
) -> Iterator[str]:
    for mark in marks:
        y = up.place(mark)
        path = f"M{across.start - 12:.2f} {y:.2f}H{across.end + 8:.2f}"
        yield element("path", d=path, class_="axis" if mark == 0 else "grid")
        left = across.start - 16
        yield words(f"{mark:g}", left, y + SMALL / 3, class_="tick", text_anchor="end")
    yield words(fitted(chart.y_title, width - 4, SMALL), 2.0, 14.0, class_="tick")


def _x_axis(chart: LineChart, across: Logarithmic, up: Linear, width: float) -> Iterator[str]:
    conditions = sorted({point.x for line in chart.lines for point in line.points})
    places = [across.place(condition) for condition in conditions]
    for index in thin(places, TICK_EVERY):
        text = _condition(conditions[index], chart)
        half = width_of(text, SMALL) / 2
        x = min(max(places[index], half), width - half)
        yield words(text, x, up.start + 18, class_="tick", text_anchor="middle")
    middle = (across.start + across.end) / 2
    yield words(chart.x_title, middle, up.start + 38, class_="tick", text_anchor="middle")


def _condition(x: float, chart: LineChart) -> str:
    return f"{x / 1024:.4g}K" if chart.thousands and x >= 1024 else f"{x:g}"
