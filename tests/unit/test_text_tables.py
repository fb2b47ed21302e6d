"""Tables, long lines and styles at any width: nothing is lost, nothing sticks out."""

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
    line_cells,
    line_of,
    painted,
    plain_text,
)
from sparkdeploy.terminal.tables import (
    GAP,
    Fill,
    TextColumn,
    TextRow,
    TextTable,
    laid_out,
    longest_word,
    row_of,
    wrapped,
)
from tests.unit.plain import plain_lines

WIDTHS = st.integers(40, 250)
WORDS = st.text("abz0%-./模é", min_size=1, max_size=14)
SENTENCES = st.lists(WORDS, max_size=14).map(" ".join)
FIGURES = st.builds(
    "{:,.1f} {}".format, st.floats(0, 1e9), st.sampled_from(["GiB", "tok/s", "tokens"])
)
CELLS = {Fill.WHOLE: WORDS, Fill.FIGURE: FIGURES, Fill.WORDS: SENTENCES}


@st.composite
def tables(draw: st.DrawFn) -> TextTable:
    fills = draw(st.lists(st.sampled_from(Fill), min_size=1, max_size=9))
    titles = [draw(st.one_of(st.just(""), WORDS)) for _ in fills]
    rows = draw(st.lists(st.tuples(*(CELLS[fill] for fill in fills)), min_size=1, max_size=5))
    notes = draw(st.lists(SENTENCES, max_size=2))
    return TextTable(
        tuple(map(TextColumn, titles, fills)),
        tuple(row_of(*row, beneath=[f"    {note}" for note in notes]) for row in rows),
        indent=draw(st.integers(0, 4)),
    )


def held_in(table: TextTable) -> list[str]:
    """Every cell that may not be broken, and every word of the others."""
    found = []
    for row in table.rows:
        assert isinstance(row, TextRow)
        for column, cell in zip(table.columns, row.cells, strict=True):
            text = plain_text(cell)
            found += text.split(" ") if column.fill is Fill.WORDS else [text]
        found += [word for line in row.beneath for word in plain_text(line).split()]
    return [text for text in found if text]


@given(tables(), WIDTHS)
def test_a_table_loses_nothing_at_any_width(table: TextTable, width: int) -> None:
    lines = plain_lines([table], width)
    left = "\n".join(lines)
    assert [text for text in held_in(table) if text not in left] == []
    assert sum(map(len, "".join(lines).split())) >= sum(
        len(text.replace(" ", "")) for text in held_in(table)
    )


@given(tables(), WIDTHS)
def test_no_line_is_wider_than_the_terminal(table: TextTable, width: int) -> None:
    for line in laid_out([table], width):
        alone = longest_word(line) + table.indent + 2 * GAP
        assert line_cells(line) <= max(width, alone)


@given(tables())
def test_a_pipe_gets_one_line_a_row(table: TextTable) -> None:
    lines = plain_lines([table], None)
    notes = sum(len(row.beneath) for row in table.rows if isinstance(row, TextRow))
    full = any(plain_text(cell) for row in table.rows for cell in row.cells)  # type: ignore[union-attr]
    titled = any(column.title for column in table.columns)
    assert not full or len(lines) - len(table.rows) - notes in {0, int(titled)}
    for row in table.rows:
        assert isinstance(row, TextRow)
        texts = [plain_text(cell) for cell in row.cells]
        assert any(all(text in line for text in texts) for line in lines) or not any(texts)


@given(SENTENCES, st.integers(0, 12), WIDTHS)
def test_a_long_line_goes_on_and_says_the_same(text: str, indent: int, width: int) -> None:
    line = line_of(" " * indent + text, Piece(" and red", Style.BAD))
    rows = list(wrapped(line, width))
    assert " ".join(plain_text(row).strip() for row in rows).split() == plain_text(line).split()
    assert all(line_cells(row) <= max(width, longest_word(row) + indent + 2) for row in rows)
    assert [piece.text.strip() for row in rows for piece in row if piece.style is Style.BAD]


def test_columns_line_up_where_letters_are_two_cells_wide() -> None:
    table = TextTable(
        (TextColumn("name"), TextColumn("tok/s", Fill.FIGURE)),
        (row_of("模型", "5"), row_of("abcd", "51.6")),
    )
    assert plain_lines([table], 40) == ["name  tok/s", "模型      5", "abcd   51.6"]


def test_what_does_not_fit_as_a_table_becomes_a_block_a_row() -> None:
    columns = (TextColumn("name"), TextColumn("memory", Fill.FIGURE), TextColumn("model"))
    table = TextTable(columns, (row_of("main", "88.1 GiB", "m" * 28, beneath=["  a note"]),))
    assert plain_lines([table], 60)[1] == f"main  88.1 GiB  {'m' * 28}"
    assert plain_lines([table], 40) == [
        "main  memory: 88.1 GiB",
        f"  model: {'m' * 28}",
        "  a note",
    ]


def test_an_empty_column_is_not_shown() -> None:
    table = TextTable((TextColumn("tag"), TextColumn("used by")), (row_of("a", ""),))
    assert plain_lines([table], 80) == ["tag", "a"]
    assert plain_lines([TextTable((TextColumn("tag"),), ())], 80) == []


@pytest.mark.parametrize(
    "text",
    [
        "      fix: sudo usermod -aG docker anna && newgrp docker && docker run --rm hello-world",
        "    fix: make room for it: docker system prune --all --volumes --filter until=240h",
        "  memory is short: `sparkdeploy plan v2 --set serve.gpu_memory_utilization=0.7` says more",
        "try: curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: text/json'",
    ],
)
def test_a_command_stays_in_one_piece(text: str) -> None:
    command = text.split("`")[1] if "`" in text else text.rpartition(": ")[2]
    if text.startswith("try"):
        command = text.removeprefix("try: ")
    assert any(command in line for line in plain_lines([text], 40))


def test_what_a_cell_holds_commands_no_terminal() -> None:
    table = TextTable((TextColumn(),), (row_of("a\x1b[2Jb\nc", beneath=["\x07"]),))
    assert plain_lines([table], 80) == ["a\\x1b[2Jb c", "\\x07"]


def test_the_widest_column_of_words_gives_way_first() -> None:
    short, long = "as the recipe says it", " ".join(["word"] * 30)
    columns = (TextColumn("a", Fill.WORDS), TextColumn("b", Fill.WORDS))
    first, *_ = plain_lines([TextTable(columns, (row_of(short, long),))], 60)[1:]
    assert first.startswith(f"{short}  word word")


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
