"""The drawing: whatever is drawn is finite, inside its picture, and legible."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkdeploy.bench.report import draw as drawing
from sparkdeploy.bench.report.bars import draw_bars
from sparkdeploy.bench.report.chart import (
    LARGEST,
    Bar,
    BarChart,
    BarKind,
    Group,
    Line,
    LineChart,
    Point,
    Scale,
    change,
)
from sparkdeploy.bench.report.page import NARROW, WIDE
from sparkdeploy.bench.report.panels import draw_lines

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
FONTS = {"group": 13.0, "value": 13.0}
values = st.floats(0, LARGEST) | st.integers(0, 200).map(float) | st.just(0.0)
labels = st.text(max_size=40)
widths = st.sampled_from([WIDE, NARROW])


@st.composite
def bars(draw: st.DrawFn) -> Bar:
    value = draw(values)
    spread_out = draw(st.none() | st.floats(0, 0.5))
    low, high = (None, None) if spread_out is None else (value * (1 - spread_out), value)
    return Bar(
        draw(labels), value, low, high, draw(st.integers(0, 20)), draw(st.sampled_from(BarKind))
    )


@st.composite
def bar_charts(draw: st.DrawFn) -> BarChart:
    groups = st.builds(Group, labels, st.lists(bars(), min_size=1, max_size=4).map(tuple))
    return BarChart(
        draw(labels), "tok/s", draw(st.lists(groups, min_size=1, max_size=4).map(tuple))
    )


@st.composite
def line_charts(draw: st.DrawFn) -> LineChart:
    point = st.builds(Point, st.integers(1, 2**20).map(float), values, st.none(), st.none())
    points = st.lists(point, min_size=1, max_size=6, unique_by=lambda item: item.x).map(
        lambda found: tuple(sorted(found, key=lambda item: item.x))
    )
    lines = st.lists(
        st.builds(Line, labels, points, st.integers(0, 20)), min_size=1, max_size=20
    ).map(tuple)
    return LineChart(draw(labels), "streams", "tok/s", draw(lines), draw(st.sampled_from(Scale)))


def line_chart_of(*conditions: float) -> LineChart:
    line = Line("", tuple(Point(x, 1.0, None, None) for x in conditions), 0)
    return LineChart("", "streams", "tok/s", (line,))


def check_inside(text: str) -> None:
    """Every coordinate is a number and within the picture, and so is every word."""
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for item in root.iter():
        name = item.tag.rpartition("}")[2]
        for key, limit in (("x", width), ("y", height), ("cx", width), ("cy", height)):
            if key in item.attrib:
                assert 0 <= float(item.attrib[key]) <= limit, (name, item.attrib)
        if name == "rect":
            assert float(item.attrib["x"]) + float(item.attrib["width"]) <= width + 0.01
            assert float(item.attrib["y"]) + float(item.attrib["height"]) <= height + 0.01
        if name == "path":
            assert "n" not in item.attrib["d"], item.attrib
            assert all(
                0 <= float(n) <= max(width, height) for n in NUMBER.findall(item.attrib["d"])
            )
        if name == "text" and item.text:
            check_words(item, width)


def check_words(item: ElementTree.Element, width: float) -> None:
    size = FONTS.get(item.attrib["class"].split()[0], 12.0)
    long = drawing.width_of(item.text or "", size)
    share = {"start": 0.0, "middle": 0.5, "end": 1.0}[item.attrib.get("text-anchor", "start")]
    start = float(item.attrib["x"]) - share * long
    assert start >= -1, (item.attrib, item.text)
    assert start + long <= width + 1, (item.attrib, item.text)


@given(bar_charts(), widths)
def test_bars_stay_in_their_picture(chart: BarChart, width: float) -> None:
    check_inside(draw_bars(chart, width))


@given(line_charts(), widths)
@example(line_chart_of(1.0, 1000006.0), WIDE)
def test_lines_stay_in_their_picture(chart: LineChart, width: float) -> None:
    check_inside(draw_lines(chart, width))


def test_a_bar_s_length_is_its_value() -> None:
    chart = BarChart("t", "tok/s", (Group("g", (Bar("a", 25.0), Bar("b", 50.0, 40.0, 50.0))),))
    root = ElementTree.fromstring(draw_bars(chart, WIDE))
    short, long = (float(i.attrib["width"]) for i in root.iter() if i.tag.endswith("rect"))
    assert long == pytest.approx(2 * short, abs=0.05)
    assert [i.text for i in root.iter() if i.attrib.get("class") == "value measured"] == [
        "25.0",
        "50.0",
    ]


def linear(colour: str) -> tuple[float, float, float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return red, green, blue


"""Machado, Oliveira and Fernandes 2009, severity 1.0, on linear colours."""


@pytest.mark.parametrize(
    ("share", "digits", "said"),
    [
        (-0.004, 0, "0%"),
        (0.004, 0, "0%"),
        (-0.04, 0, "-4%"),
        (0.1, 0, "+10%"),
        (-0.0004, 1, "0.0%"),
    ],
)
def test_a_change_that_rounds_to_nothing_has_no_sign(share: float, digits: int, said: str) -> None:
    assert change(share, digits) == said
