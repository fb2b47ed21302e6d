"""Text by the piece, each with its style; how wide it is, and where it may be coloured."""

import itertools
import os
import unicodedata
from dataclasses import dataclass
from enum import Enum
from typing import TextIO

from sparkdeploy.terminal.safe_text import visible, visible_line

USUAL_COLUMNS = 80


class Style(Enum):
    """What a piece of text means, as the parameters of a terminal's SGR command."""

    PLAIN = ""
    STRONG = "1"
    QUIET = "2"
    GOOD = "32"
    CAUTION = "33"
    BAD = "1;31"
    COMMAND = "36"
    """What can be typed as it stands; it is never broken into rows."""


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    style: Style = Style.PLAIN


Line = tuple[Piece, ...]


def line_of(*parts: Piece | str) -> Line:
    return tuple(Piece(part) if isinstance(part, str) else part for part in parts)


def plain_text(line: Line) -> str:
    return "".join(piece.text for piece in line)


def clean(line: Line) -> Line:
    """Return the line as it is shown: its control characters written out."""
    return tuple(Piece(visible_line(piece.text), piece.style) for piece in line)


def painted(line: Line, width: int | None = None) -> str:
    """Return a line with its colours, cut at `width` cells: what a terminal's row takes."""
    left, texts = width, []
    for piece in clean(line):
        text = piece.text if left is None else clipped(piece.text, left)
        texts.append(coloured(text, piece.style))
        if left is not None:
            if text != piece.text:
                break
            left -= cells(text)
    return "".join(texts)


def coloured(text: str, style: Style) -> str:
    """Return a passage with its colour, whatever its length; what it holds commands nothing."""
    shown = visible(text)
    return f"\x1b[{style.value}m{shown}\x1b[0m" if style.value and shown else shown


def cells(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def line_cells(line: Line) -> int:
    return sum(cells(piece.text) for piece in line)


def clipped(text: str, width: int) -> str:
    """Return a text of at most `width` cells; `…` stands for what is left out."""
    if cells(text) <= width:
        return text
    ends = itertools.accumulate(map(_cells_of, text))
    return text[: sum(end < width for end in ends)] + "…"[:width]


def _cells_of(character: str) -> int:
    if unicodedata.east_asian_width(character) in {"W", "F"}:
        return 2
    return 0 if unicodedata.category(character) in {"Mn", "Me", "Cf"} else 1


def draws_on(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that takes colours and cursor movements.

    NO_COLOR (no-color.org), TERM=dumb and CI, where nobody looks on, ask for plain lines.
    """
    asked = os.environ.get("NO_COLOR") or os.environ.get("CI")
    is_plain = asked or os.environ.get("TERM", "dumb") == "dumb"
    return not is_plain and stream.isatty()


def columns_of(stream: TextIO) -> int | None:
    """Return how wide what is written there may be, in cells; None for as wide as it likes.

    COLUMNS decides where it is set. A pipe and a file get one line for each row of a table, so
    that programs such as grep find all of it.
    """
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdecimal() and int(asked[:6]) > 0:
        return int(asked[:6])
    return size_of(stream).columns if stream.isatty() else None


def size_of(stream: TextIO) -> os.terminal_size:
    """Return a terminal's columns and rows as they are now; some do not know theirs."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    return os.terminal_size((size.columns or USUAL_COLUMNS, size.lines or 24))
