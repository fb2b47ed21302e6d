"""Lines with styles on a terminal."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sparkdeploy.errors import UnhealthyError
from sparkdeploy.terminal.console import Console
from sparkdeploy.terminal.style import (
    Piece,
    Style,
    cells,
    clipped,
    columns_of,
    line_of,
    painted,
    plain_text,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("CI", raising=False)


def test_a_piece_is_coloured_and_the_rest_is_not() -> None:
    line = line_of("it ", Piece("failed", Style.BAD))
    assert painted(line, 80) == "it \x1b[1;31mfailed\x1b[0m"
    assert plain_text(line) == "it failed"


def test_a_line_ends_where_the_row_does() -> None:
    assert painted(line_of("a" * 30), 10) == "a" * 9 + "…"
    assert painted(line_of("模型" * 10), 9) == "模型模型…"


@given(st.text("a1 é模型ﬀ한́", max_size=30), st.integers(0, 40))
def test_cells_are_those_of_a_terminal(text: str, width: int) -> None:
    assert cells(text) == cell_len(text)
    assert cells(clipped(text, width)) <= width


def test_a_pipe_is_as_wide_as_it_likes_and_columns_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert columns_of(io.StringIO()) is None
    monkeypatch.setenv("COLUMNS", "120")
    assert columns_of(io.StringIO()) == 120
    for text in ("0", "wide", "-3", "²"):
        monkeypatch.setenv("COLUMNS", text)
        assert columns_of(io.StringIO()) is None


@pytest.mark.parametrize(
    ("end", "outcome"),
    [(None, "done"), (UnhealthyError("x"), "failed"), (KeyboardInterrupt(), "interrupted")],
)
def test_a_step_says_how_it_ended(
    capsys: pytest.CaptureFixture[str], end: BaseException | None, outcome: str
) -> None:
    passes = pytest.raises(type(end)) if end is not None else contextlib.nullcontext()
    with passes, Console(clock=lambda: 0.0).step("start of main"):
        if end is not None:
            raise end
    assert capsys.readouterr().err == f"start of main: {outcome} (0.0s)\n"
