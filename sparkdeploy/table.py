"""Tables of text for any width: a figure, a name and a path are whole at every one of them.

Where a table is too wide, its columns of words go on in a further row. Where that is not enough,
each of its rows becomes a block of lines, `title: value`. Nothing here draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING

from sparkdeploy.ink import Ink, Line, Piece, line_of
from sparkdeploy.wrap import cells as cells_of
from sparkdeploy.wrap import clean, line_cells, longest_word, read_line, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

GAP = 2
"""Cells between two columns."""
LEAST_WORDS = 16
"""A column of words is not made narrower than this."""
PADDED_WORDS = 64
"""Without a width: what is wider pushes the next column aside in its own row alone."""


class Fill(Enum):
    """How a column holds what is in it."""

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


Block = str | Line | TextTable
"""A paragraph; text that has line ends of its own is shown as it is."""


def row_of(*parts: str | Piece | Line, beneath: Iterable[str | Line] = ()) -> TextRow:
    """Return a row; bare text is written plainly."""
    lines = (read_line(line) if isinstance(line, str) else line for line in beneath)
    cells = (part if isinstance(part, tuple) else line_of(part) for part in parts)
    return TextRow(tuple(cells), tuple(lines))


def laid_out(blocks: Iterable[Block], width: int | None) -> Iterator[Line]:
    """Yield the lines of blocks, at most `width` cells wide; without a width one line each.

    Wider than `width` is only what holds one thing that is.
    """
    for block in blocks:
        if isinstance(block, TextTable):
            yield from _table_lines(block, width)
        elif isinstance(block, str) and (width is None or "\n" in block):
            yield from (line_of(text) for text in block.split("\n"))
        else:
            line = clean(read_line(block) if isinstance(block, str) else block)
            yield from _flowing(line, width)


def _flowing(line: Line, width: int | None) -> Iterator[Line]:
    return iter([line]) if width is None else wrapped(line, width)


def _table_lines(table: TextTable, width: int | None) -> Iterator[Line]:
    shown = _cleaned(table)
    if not shown.rows:
        return
    if width is None:
        yield from _rows(shown, _unbound(shown), width)
    elif (widths := _fitted(shown, width)) is not None:
        yield from _rows(shown, widths, width)
    else:
        yield from _blocks(shown, width)


def _rows(shown: TextTable, widths: Sequence[int], width: int | None) -> Iterator[Line]:
    if any(column.title for column in shown.columns):
        titles = (line_of(Piece(column.title, Ink.QUIET)) for column in shown.columns)
        yield from _row_lines(shown, TextRow(tuple(titles)), widths, width)
    for row in shown.rows:
        if isinstance(row, TextRow):
            yield from _row_lines(shown, row, widths, width)
            yield from _beneath(row, width)
        else:
            yield from _flowing(row, width)


def _beneath(row: TextRow, width: int | None) -> Iterator[Line]:
    for line in row.beneath:
        yield from _flowing(line, width)


def _cleaned(table: TextTable) -> TextTable:
    """Return a table with what a terminal shows of it, without its empty columns."""
    rows = tuple(
        TextRow(tuple(map(clean, row.cells)), tuple(map(clean, row.beneath)))
        if isinstance(row, TextRow)
        else clean(row)
        for row in table.rows
    )
    full = [row.cells for row in rows if isinstance(row, TextRow)]
    kept = [
        place for place in range(len(table.columns)) if any(line_cells(row[place]) for row in full)
    ]
    return replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(
            replace(row, cells=tuple(row.cells[place] for place in kept))
            if isinstance(row, TextRow)
            else row
            for row in rows
        ),
    )


def _columns(table: TextTable) -> list[tuple[Line, ...]]:
    rows = [row.cells for row in table.rows if isinstance(row, TextRow)]
    return list(zip(*rows, strict=True)) or [() for _ in table.columns]


def _widest(table: TextTable) -> list[int]:
    return [
        max([cells_of(column.title), *map(line_cells, held)])
        for column, held in zip(table.columns, _columns(table), strict=True)
    ]


def _unbound(table: TextTable) -> list[int]:
    """Return columns for a table that may be as wide as it likes."""
    return [
        min(width, max(PADDED_WORDS, cells_of(column.title)))
        if column.fill is Fill.WORDS
        else width
        for column, width in zip(table.columns, _widest(table), strict=True)
    ]


def _fitted(table: TextTable, width: int) -> list[int] | None:
    """Return columns that fit; None where the table has to become blocks."""
    widths = _widest(table)
    least = _least(table, widths, width)
    over = table.indent + sum(widths) + GAP * (len(widths) - 1) - width
    if over > sum(widths) - sum(least):
        return None
    for _ in range(over):
        # The widest gives way first.
        place = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        widths[place] -= 1
    return widths


def _least(table: TextTable, widths: Sequence[int], width: int) -> list[int]:
    """Return how narrow each column can be: one of words as its longest word, or a few words."""
    last = len(table.columns) - 1
    found = []
    for place, (column, held) in enumerate(zip(table.columns, _columns(table), strict=True)):
        if column.fill is not Fill.WORDS:
            found.append(widths[place])
            continue
        longest = [longest_word(line) for line in held]
        if place == last:
            # What is wider than a row of a block sticks out here or there.
            longest = [word for word in longest if word <= width - table.indent - 2 * GAP]
        least = max([min(widths[place], LEAST_WORDS), cells_of(column.title), *longest])
        found.append(min(least, widths[place]))
    return found


def _row_lines(
    table: TextTable, row: TextRow, widths: Sequence[int], width: int | None
) -> Iterator[Line]:
    columns = [
        [cell] if width is None or column.fill is not Fill.WORDS else list(wrapped(cell, space, 0))
        for column, cell, space in zip(table.columns, row.cells, widths, strict=True)
    ]
    for parts in zip_longest(*columns, fillvalue=()):
        line: list[Piece] = [Piece(" " * table.indent)]
        for column, part, space in zip(table.columns, parts, widths, strict=True):
            blanks = Piece(" " * (space - line_cells(part)))
            line += (blanks, *part) if column.fill is Fill.FIGURE else (*part, blanks)
            line.append(Piece(" " * GAP))
        yield _without_end(line)


def _without_end(pieces: list[Piece]) -> Line:
    """Return a line without blanks at its end, and without empty pieces."""
    held = [piece for piece in pieces if piece.text]
    while held and not held[-1].text.strip(" "):
        held.pop()
    return tuple(held)


def _blocks(table: TextTable, width: int) -> Iterator[Line]:
    """Yield each row as its first cells and `title: value` for the others, as many as fit."""
    titles = [column.title for column in table.columns]
    headed = next((place + 1 for place, title in enumerate(titles) if title), len(titles))
    shown = [f"{title}: " if title and at >= headed else "" for at, title in enumerate(titles)]
    for row in table.rows:
        if not isinstance(row, TextRow):
            yield from wrapped(row, width)
            continue
        named = [
            (Piece(title, Ink.QUIET), *cell)
            for title, cell in zip(shown, row.cells, strict=True)
            if line_cells(cell)
        ]
        yield from _packed(named, table.indent, width)
        yield from _beneath(row, width)


def _packed(parts: Iterable[Line], indent: int, width: int) -> Iterator[Line]:
    """Yield parts beside each other where they fit; one that is wider than a row is wrapped."""
    further = indent + GAP
    row, used = [Piece(" " * indent)], indent
    for part in parts:
        gap = GAP if len(row) > 1 else 0
        if len(row) > 1 and used + gap + line_cells(part) > width:
            yield _without_end(row)
            row, used, gap = [Piece(" " * further)], further, 0
        row += (Piece(" " * gap), *part)
        used += gap + line_cells(part)
        if used > width:
            yield from wrapped(_without_end(row), width, further + GAP)
            row, used = [Piece(" " * further)], further
    if len(row) > 1:
        yield _without_end(row)
