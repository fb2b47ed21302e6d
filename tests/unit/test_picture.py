"""What stays on a terminal and in its scroll-back when a picture has been drawn on it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.ink import Ink, Line, Piece, line_of
from sparkdeploy.picture import AboveStream, Picture
from tests.examples import examples
from tests.unit.emulator import Emulator

if TYPE_CHECKING:
    import os
    from typing import TextIO

    import pytest

WORDS = st.text(st.sampled_from("ab ─█"), max_size=90)
PICTURES = st.lists(WORDS, max_size=9)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("draw"), PICTURES),
        st.tuples(st.just("above"), st.lists(st.text("xyz", max_size=120), min_size=1, max_size=3)),
        st.tuples(st.just("width"), st.integers(20, 130)),
    ),
    max_size=12,
)


def picture_on(terminal: Emulator, shown: list[str]) -> Picture:
    """A picture that is drawn when a test says so, and not by itself."""

    def compose(_size: os.terminal_size) -> list[Line]:
        return [line_of(Piece(text, Ink.QUIET)) for text in shown]

    made = Picture(cast("TextIO", terminal), compose, terminal.size)
    made._is_hidden = False
    return made


@settings(max_examples=examples(60))
@given(DEEDS)
def test_nothing_stays_but_what_was_written_above(deeds: list[tuple[str, list[str] | int]]) -> None:
    # High enough that no row of the picture leaves the screen, however narrow it becomes.
    terminal = Emulator(80, 90)
    shown: list[str] = []
    above: list[str] = []
    picture = picture_on(terminal, shown)
    for name, value in deeds:
        if isinstance(value, int):
            terminal.resize(value, 90)
        elif name == "draw":
            shown[:] = value
        else:
            above += value
            picture.above(cast("TextIO", terminal), "".join(f"{line}\n" for line in value))
        picture.draw()
    drawn = terminal.text().split("\n")
    assert [line for line in drawn if set(line) & set("ab─█")] == [
        it for line in shown if (it := _cut(line, terminal.columns).rstrip()) and set(it) - {" "}
    ]
    picture.__exit__()
    terminal.resize(200, 90)
    assert terminal.text() == "\n".join(above).rstrip("\n")


def _cut(line: str, columns: int) -> str:
    width = min(columns - 1, 79)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def test_a_line_that_is_as_it_was_is_not_written_again() -> None:
    terminal, shown = Emulator(80, 24), ["first", "second"]
    picture = picture_on(terminal, shown)

    picture.draw()
    once = len(terminal.written)
    picture.draw()
    assert len(terminal.written) == once
    shown[1] = "another"
    picture.draw()
    assert "first" not in "".join(terminal.written[once:])
    assert terminal.text() == "first\nanother"


def test_what_the_process_writes_goes_above_by_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Emulator(80, 24)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    with Picture(cast("TextIO", terminal), lambda _size: [line_of("runs")], terminal.size) as it:
        it.draw()
        assert isinstance(sys.stderr, AboveStream)
        sys.stderr.write("one\ntw")
        assert terminal.text() == "one\nruns"
        sys.stdout.write("three\n")
        with it.hidden():
            sys.stderr.write("o? no\n")
            assert terminal.text() == "one\nthree\ntwo? no"
        assert terminal.text() == "one\nthree\ntwo? no\nruns"
    assert terminal.text() == "one\nthree\ntwo? no"
    assert not isinstance(sys.stderr, AboveStream)
