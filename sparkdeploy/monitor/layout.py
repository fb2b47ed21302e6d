"""Fields on lines of so many columns: a field is whole or is not there, so no figure is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.ink import Ink, Line, Piece, plain_text
from sparkdeploy.wrap import line_cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BETWEEN = "   "
BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-:=+*#"
"""For a terminal whose encoding has no blocks."""


def field(label: str, *values: Piece | str) -> Line:
    """Return a figure with what it is; nothing but the value where the label is empty."""
    pieces = [Piece(it) if isinstance(it, str) else it for it in values]
    return (Piece(f"{label} ", Ink.QUIET), *pieces) if label else tuple(pieces)


def flow(fields: Iterable[Line], columns: int, indent: str = "  ") -> tuple[Line, ...]:
    """Put fields one after the other, on as many lines as they take."""
    lines: list[list[Piece]] = []
    width = columns + 1
    for item in filter(plain_text, fields):
        needed = len(BETWEEN) + line_cells(item)
        if width + needed > columns:
            lines.append([Piece(indent)])
            width = len(indent) + line_cells(item)
        else:
            lines[-1].append(Piece(BETWEEN))
            width += needed
        lines[-1] += item
    return tuple(map(tuple, lines))


def fitted(fields: Sequence[Line], columns: int, indent: str = "") -> Line:
    """Put on one line as many of the fields as fit, the first ones first."""
    lines = flow(fields, columns, indent)
    return lines[0] if lines else ()


def wrapped(text: str, columns: int, most_lines: int) -> tuple[str, ...]:
    """Break text at blanks where there are any; what is more than `most_lines` is left out."""
    lines: list[str] = []
    while text and len(lines) < most_lines:
        cut = len(text) if len(text) <= columns else text.rfind(" ", 1, columns + 1)
        cut = columns if cut <= 0 else cut
        lines.append(text[:cut])
        text = text[cut:].lstrip()
    return tuple(lines)


def sparkline(values: Sequence[float], columns: int, ramp: str = BLOCKS) -> str:
    """Draw the last values, the highest of them as high as a line is."""
    shown = values[-columns:] if columns > 0 else ()
    highest = max(shown, default=0.0)
    steps = len(ramp) - 1
    return "".join(ramp[round(value / highest * steps) if highest else 0] for value in shown)
