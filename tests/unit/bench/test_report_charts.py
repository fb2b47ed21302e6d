"""The plots: whatever is drawn is finite and inside its picture."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkdeploy.bench.report.shown import Line, Plot
from sparkdeploy.bench.tables import change

points = st.lists(
    st.tuples(st.integers(1, 2**20).map(float), st.just(0.0) | st.floats(1e-60, 1e12)),
    min_size=1,
    max_size=6,
    unique_by=lambda item: item[0],
).map(sorted)
plots = st.lists(st.builds(Line, st.text(max_size=40), st.integers(0, 7), points), min_size=1)


@given(plots.map(lambda lines: Plot("t", "streams", "tok/s", lines)))
@example(Plot("t", "streams", "s", [Line("a", 0, [(1.0, 0.0)])]))
@example(Plot("t", "streams", "s", [Line("a", 0, [(1.0, 1.0), (2.0, 10.0)])]))
def test_lines_and_marks_stay_in_their_picture(plot: Plot) -> None:
    places = [place for line in plot.lines for x, y, _ in plot.marks(line) for place in (x, y)]
    places += [mark.place for mark in (*plot.x_marks, *plot.y_marks)]
    assert all(-0.01 <= place <= 100.01 for place in places)
    assert len(plot.y_marks) >= 2


def test_twice_the_figure_is_twice_as_high() -> None:
    plot = Plot("t", "streams", "tok/s", [Line("a", 0, [(1, 25.0), (2, 50.0)])])
    (_, low, hint), (_, high, _) = plot.marks(plot.lines[0])
    assert 100 - high == pytest.approx(2 * (100 - low), abs=0.02)
    assert hint == "a: 25 tok/s at 1 streams"


def test_decades_get_a_logarithmic_axis() -> None:
    plot = Plot("t", "context", "s", [Line("a", 0, [(1024, 0.1), (2048, 10.0)])])
    assert [mark.text for mark in plot.y_marks] == ["0.1", "1", "10"]
    assert [mark.text for mark in plot.x_marks] == ["1K", "2K"]


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
