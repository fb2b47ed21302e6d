"""Lines of ink on a terminal."""

from __future__ import annotations

import io

import pytest

from sparkdeploy.ink import Ink, Piece, line_of, plain_text
from sparkdeploy.paper import STYLES, draws_on, painted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("CI", raising=False)


def test_each_ink_has_a_style() -> None:
    assert set(STYLES) == set(Ink)


def test_a_piece_is_coloured_and_the_rest_is_not() -> None:
    line = line_of("it ", Piece("failed", Ink.BAD))
    assert painted(line, 80) == "it \x1b[1;31mfailed\x1b[0m"
    assert plain_text(line) == "it failed"


def test_a_line_ends_where_the_row_does() -> None:
    assert painted(line_of("a" * 30), 10) == "a" * 9 + "…"
    assert painted(line_of("模型" * 10), 9) == "模型模型…"


def test_what_a_piece_holds_commands_no_terminal() -> None:
    assert painted(line_of("a\x1b[2Jb\nc"), 80) == "a\\x1b[2Jb c"


def test_plain_lines_where_no_colours_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draws_on(Terminal())
    assert not draws_on(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not draws_on(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not draws_on(Terminal())
