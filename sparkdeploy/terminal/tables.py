"""Tables and paragraphs of text for any width; a figure, a name and a path are never cut.

Where a table is too wide, its columns of words go on in a further row. Where that is not enough,
each of its rows becomes a few lines of `title: value`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest

from sparkdeploy.terminal.style import Line, Piece, Style, cells, clean, line_cells, line_of
from sparkdeploy.terminal.style import plain_text as text_of

GAP = 2
"""Cells between two columns, and how much further right a line goes on."""
MIN_WORDS_CELLS = 16
MAX_PADDED_CELLS = 64
"""Without a width: what is wider pushes the next column aside in its own row alone."""
BOUND = "\N{NO-BREAK SPACE}"
_UNITS = "B|kB|[MGT]B|[MKG]iB|bytes|tok/s|tokens|requests|ms|s|W|MHz|°C|%"
# A command between backticks, and a figure with its unit.
_WHOLE = re.compile(rf"`[^`]*`|\d (?=(?:{_UNITS})(?!\w))")
_TO_TYPE = re.compile(r" *(fix|try): ")
_NAMED = re.compile(r" *[^ ]+(?: [^ ]+)*  +(?=[^ ])")


class Fill(Enum):
    WHOLE = "on the left, in one row"
    FIGURE = "on the right, in one row"
    WORDS = "on the left, in as many rows as it takes"


@dataclass(frozen=True, slots=True)
class TextColumn:
    title: str = ""
    fill: Fill = Fill.WHOLE


@dataclass(frozen=True, slots=True)
class TextRow:
    """One cell a column, and lines that stand beneath them, with their own blanks before them."""

    cells: tuple[Line, ...]
    beneath: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class TextTable:
    """Columns without anything in them are not shown; a bare line is a heading among the rows."""

    columns: tuple[TextColumn, ...]
    rows: tuple[TextRow | Line, ...]
    indent: int = 0
    narrow: "TextTable | None" = None
    """What is shown in its place where it is too wide and this is not."""


Block = str | Line | TextTable
"""A paragraph; text that has line ends of its own is shown as it is."""


def row_of(*parts: str | Piece | Line, beneath: Iterable[str | Line] = ()) -> TextRow:
    lines = tuple(line_of(line) if isinstance(line, str) else line for line in beneath)
    return TextRow(tuple(it if isinstance(it, tuple) else line_of(it) for it in parts), lines)


def laid_out(blocks: Iterable[Block], width: int | None) -> Iterator[Line]:
    """Yield the lines of blocks, at most `width` cells wide; without a width one line each."""
    for block in blocks:
        if isinstance(block, TextTable):
            yield from _table_lines(_first_that_fits(block, width), width)
        elif isinstance(block, str) and (width is None or "\n" in block):
            yield from (line_of(text) for text in block.split("\n"))
        else:
            yield from wrapped(clean(line_of(block) if isinstance(block, str) else block), width)


def wrapped(line: Line, width: int | None, hang: int | None = None) -> Iterator[Line]:
    """Yield the rows of a line, which goes on `hang` cells from the left.

    Without that it goes on beneath the text that stands apart from its name, as in `name    text`,
    or a little further right than it begins. What is to be typed stays in one line.
    """
    text = text_of(line)
    if width is None or cells(text) <= width or _TO_TYPE.match(text):
        yield line
        return
    if hang is None:
        named = _NAMED.match(text)
        begins = len(text) - len(text.lstrip(" "))
        hang = len(named[0]) if named and len(named[0]) <= width // 3 else begins + GAP
    hang = min(hang, width // 2)
    start, end, margin = 0, 0, 0
    for word in re.finditer(r"[^ ]+", _bound(line)):
        if end and margin + cells(text[start : word.end()]) > width:
            yield (Piece(" " * margin), *_part(line, start, end))
            start, margin = word.start(), hang
        end = word.end()
    yield (Piece(" " * margin), *_part(line, start, end))


def longest_word(line: Line) -> int:
    """Return the cells of the widest thing in a line that stays whole."""
    text = text_of(line)
    return cells(text) if _TO_TYPE.match(text) else max(map(cells, _bound(line).split(" ")))


def _bound(line: Line) -> str:
    """Return a line's text in which the blanks that may not become line ends are others."""
    parts = (
        it.text.replace(" ", BOUND) if it.style is Style.COMMAND and it.text.strip() else it.text
        for it in line
    )
    return _WHOLE.sub(lambda found: found[0].replace(" ", BOUND), "".join(parts))


def _part(line: Line, start: int, end: int) -> Iterator[Piece]:
    for piece in line:
        if text := piece.text[max(start, 0) : max(end, 0)]:
            yield Piece(text, piece.style)
        start, end = start - len(piece.text), end - len(piece.text)


def _cleaned(table: TextTable) -> TextTable:
    """Return a table with what a terminal shows of it, without its empty columns."""
    full = [row.cells for row in table.rows if isinstance(row, TextRow)]
    kept = [at for at in range(len(table.columns)) if any(line_cells(row[at]) for row in full)]
    rows = tuple(
        TextRow(tuple(clean(row.cells[at]) for at in kept), tuple(map(clean, row.beneath)))
        if isinstance(row, TextRow)
        else clean(row)
        for row in table.rows
    )
    return replace(table, columns=tuple(table.columns[at] for at in kept), rows=rows)


def _table_lines(table: TextTable, width: int | None) -> Iterator[Line]:
    widths = _widths(table, width)
    fits = _fits(table, width)
    if fits and table.rows and any(column.title for column in table.columns):
        titles = tuple(line_of(Piece(column.title, Style.QUIET)) for column in table.columns)
        yield from _row_lines(table, titles, widths, width)
    for row in table.rows:
        if not isinstance(row, TextRow):
            yield from wrapped(row, width)
            continue
        if fits:
            yield from _row_lines(table, row.cells, widths, width)
        else:
            rows = wrapped(_named_cells(table, row, width), width, table.indent + GAP)
            yield from (
                tuple(replace(it, text=it.text.replace(BOUND, " ")) for it in line) for line in rows
            )
        for line in row.beneath:
            yield from wrapped(line, width)


def _first_that_fits(whole: TextTable, width: int | None) -> TextTable:
    """Return a table, or the first of its narrow ones that fits where it does not."""
    table: TextTable | None = whole
    while table is not None:
        if _fits(cleaned := _cleaned(table), width):
            return cleaned
        table = table.narrow
    return _cleaned(whole)


def _fits(table: TextTable, width: int | None) -> bool:
    return width is None or _width_of(table, _widths(table, width)) <= width


def _width_of(table: TextTable, widths: Sequence[int]) -> int:
    return table.indent + sum(widths) + GAP * (len(widths) - 1)


def _widths(table: TextTable, width: int | None) -> list[int]:
    """Return the columns' widths: as wide as what they hold, those of words narrower if need be."""
    rows = [row.cells for row in table.rows if isinstance(row, TextRow)]
    titles = [cells(column.title) for column in table.columns]
    widths = [max([title, *(line_cells(it[at]) for it in rows)]) for at, title in enumerate(titles)]
    words = [at for at, column in enumerate(table.columns) if column.fill is Fill.WORDS]
    if width is None:
        for at in words:
            widths[at] = min(widths[at], max(MAX_PADDED_CELLS, titles[at]))
        return widths
    least = {
        at: max(
            [min(widths[at], MIN_WORDS_CELLS), titles[at], *(longest_word(it[at]) for it in rows)]
        )
        for at in words
    }
    while _width_of(table, widths) > width:
        wide = [at for at in words if widths[at] > least[at]]
        if not wide:
            break
        # The widest gives way first.
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _row_lines(
    table: TextTable, row: Sequence[Line], widths: Sequence[int], width: int | None
) -> Iterator[Line]:
    columns = [
        list(wrapped(cell, space if width and column.fill is Fill.WORDS else None, 0))
        for column, cell, space in zip(table.columns, row, widths, strict=True)
    ]
    for parts in zip_longest(*columns, fillvalue=()):
        line: list[Piece] = [Piece(" " * table.indent)]
        for column, part, space in zip(table.columns, parts, widths, strict=True):
            blanks = Piece(" " * (space - line_cells(part)))
            line += (blanks, *part) if column.fill is Fill.FIGURE else (*part, blanks)
            line.append(Piece(" " * GAP))
        while line and not line[-1].text.strip(" "):
            line.pop()
        yield tuple(piece for piece in line if piece.text)


def _named_cells(table: TextTable, row: TextRow, width: int | None) -> Line:
    """Return a row as one line: its first cells, and `title: value` for those behind the first
    title; each that a row has room for stays in one piece, unless it is words.
    """
    titles = [column.title for column in table.columns]
    first = next((at for at, title in enumerate(titles) if title), len(titles))
    line: list[Piece] = []
    for at, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        if not line_cells(cell):
            continue
        named = (
            (Piece(f"{column.title}:{BOUND}", Style.QUIET),) if column.title and at > first else ()
        )
        part = (*named, *cell)
        is_whole = table.indent + GAP + line_cells(part) <= (width or 0)
        if column.fill is not Fill.WORDS and is_whole:
            part = tuple(replace(it, text=it.text.replace(" ", BOUND)) for it in part)
        line += (Piece(" " * (GAP if line else table.indent)), *part)
    return tuple(line)
