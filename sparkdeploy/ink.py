"""Text by the piece, each with the ink it is written in. Nothing here draws."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Ink(Enum):
    """What a piece of text means; `paper` knows which colour that is."""

    PLAIN = "plain"
    STRONG = "strong"
    """What the eye is to find first."""
    QUIET = "quiet"
    """What is there for whoever looks for it."""
    GOOD = "good"
    CAUTION = "caution"
    BAD = "bad"
    COMMAND = "command"
    """What can be typed as it stands; it is never broken into rows."""


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    ink: Ink = Ink.PLAIN


Line = tuple[Piece, ...]


def line_of(*parts: Piece | str) -> Line:
    """Return a line; bare text is written plainly."""
    return tuple(Piece(part) if isinstance(part, str) else part for part in parts)


def plain_text(line: Line) -> str:
    """Return what a line says, for whatever shows no colours."""
    return "".join(piece.text for piece in line)
