"""Lines over a logarithmic axis as SVG: every point marked, every line named at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.report import svg
from sparkdeploy.bench.report.axis import Linear, Logarithmic, spread, thin, ticks
from sparkdeploy.bench.report.palette import MARKERS, series_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.bench.report.chart import Line, LineChart, Point

FONT = 12.0
PLOT_HEIGHT, TOP, BOTTOM = 220.0, 30.0, 46.0
LABEL_EVERY, TICK_EVERY = 15.0, 28.0
MARK = 3.5


def draw_lines(chart: LineChart, width: float) -> str:
    """Return the chart `width` user units wide.

    Every x must be positive, every y plottable, and there must be a point.
    """
    points = [point for line in chart.lines for point in line.points]
    plot_height = max(PLOT_HEIGHT, LABEL_EVERY * len(chart.lines))
    height = TOP + plot_height + BOTTOM
    marks = ticks(max(max(point.y, point.high or 0.0) for point in points), 5)
    left = max(svg.width_of(f"{mark:g}", FONT) for mark in marks) + 10.0
    names = min(0.32 * width, max(svg.width_of(line.label, FONT) for line in chart.lines) + 26.0)
    along = [point.x for point in points]
    across = Logarithmic(min(along), max(along), left + 12, width - names - 8)
    up = Linear(marks[-1], TOP + plot_height, TOP)
    parts = [svg.hint(chart.title), *_grid(chart, across, up, marks, width)]
    for line in chart.lines:
        parts += _line(line, across, up, chart)
    parts += _names(chart.lines, across, up, width)
    return svg.element(
        "svg",
        "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=svg.printable(chart.title),
        class_="chart",
    )


def _line(line: Line, across: Logarithmic, up: Linear, chart: LineChart) -> Iterator[str]:
    style = series_class(line.series)
    places = [(across.place(point.x), up.place(point.y)) for point in line.points]
    path = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in places)
    yield svg.element("path", d=path, class_=f"line {style}")
    for point, (x, y) in zip(line.points, places, strict=True):
        if point.low is not None and point.high is not None:
            low, high = up.place(point.low), up.place(point.high)
            yield svg.element("path", d=f"M{x:.2f} {low:.2f}V{high:.2f}", class_=f"range {style}")
        yield _mark(line, point, (x, y), chart)


def _mark(line: Line, point: Point, place: tuple[float, float], chart: LineChart) -> str:
    at = f"{x_text(point.x, thousands=chart.thousands)} {chart.x_title}"
    return _shape(line, place, svg.hint(f"{line.label}: {point.y:.4g} {chart.y_title} at {at}"))


def _shape(line: Line, place: tuple[float, float], said: str = "") -> str:
    x, y = place
    style = f"mark {series_class(line.series)}"
    shape = MARKERS[line.series % len(MARKERS)]
    if shape == "circle":
        return svg.element("circle", said, cx=x, cy=y, r=MARK, class_=style)
    outline = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        "triangle": ((0, -1.2), (1.2, 1), (-1.2, 1)),
    }[shape]
    corners = " ".join(f"{x + MARK * dx:.2f},{y + MARK * dy:.2f}" for dx, dy in outline)
    return svg.element("polygon", said, points=corners, class_=style)


def _names(lines: tuple[Line, ...], across: Logarithmic, up: Linear, width: float) -> Iterator[str]:
    ends = [(across.place(line.points[-1].x), up.place(line.points[-1].y)) for line in lines]
    heights = spread([y for _, y in ends], apart=LABEL_EVERY, low=up.end, high=up.start)
    column = across.end + 18
    for line, (x, y), height in zip(lines, ends, heights, strict=True):
        leader = f"M{x + 5:.2f} {y:.2f}L{column - 6:.2f} {height:.2f}"
        yield svg.element("path", d=leader, class_="leader")
        yield _shape(line, (column, height))
        label = svg.fitted(line.label, width - column - 10, FONT)
        yield svg.words(label, column + 8, height + FONT / 3, class_="name")


def _grid(
    chart: LineChart, across: Logarithmic, up: Linear, marks: tuple[float, ...], width: float
) -> Iterator[str]:
    for mark in marks:
        y = up.place(mark)
        style = "axis" if mark == 0 else "grid"
        path = f"M{across.start - 12:.2f} {y:.2f}H{across.end + 8:.2f}"
        yield svg.element("path", d=path, class_=style)
        yield svg.words(
            f"{mark:g}", across.start - 16, y + FONT / 3, class_="tick", text_anchor="end"
        )
    yield svg.words(svg.fitted(chart.y_title, width - 4, FONT), 2.0, 14.0, class_="tick")
    conditions = sorted({point.x for line in chart.lines for point in line.points})
    places = [across.place(condition) for condition in conditions]
    for index in thin(places, TICK_EVERY):
        text = x_text(conditions[index], thousands=chart.thousands)
        half = svg.width_of(text, FONT) / 2
        x = min(max(places[index], half), width - half)
        yield svg.words(text, x, up.start + 18, class_="tick", text_anchor="middle")
    middle = (across.start + across.end) / 2
    yield svg.words(chart.x_title, middle, up.start + 38, class_="tick", text_anchor="middle")


def x_text(value: float, *, thousands: bool) -> str:
    """Return a condition as its axis writes it: `16`, or `16K` for 16384."""
    if thousands and value >= 1024:
        return f"{value / 1024:.4g}K"
    return f"{value:g}"
