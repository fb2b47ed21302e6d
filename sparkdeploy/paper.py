"""The door to rich, which is loaded when the first line is drawn: lines of ink on a terminal."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, TextIO

from sparkdeploy.ink import Ink, plain_text
from sparkdeploy.terminal import visible, visible_line

if TYPE_CHECKING:
    from rich.console import Console

    from sparkdeploy.ink import Line

USUAL_COLUMNS = 80
STYLES = {
    Ink.PLAIN: "",
    Ink.STRONG: "bold",
    Ink.QUIET: "dim",
    Ink.GOOD: "green",
    Ink.CAUTION: "yellow",
    Ink.BAD: "bold red",
    Ink.COMMAND: "cyan",
}


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
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    # Some terminals do not know how wide they are.
    return columns or USUAL_COLUMNS


def painted(line: Line, width: int | None) -> str:
    """Return a line with its colours, cut at `width` cells: what a terminal's row takes.

    Without a width nothing is cut.
    """
    from rich.text import Text  # noqa: PLC0415 - only what draws waits for rich

    text = Text.assemble(
        *((visible_line(piece.text), STYLES[piece.ink]) for piece in line),
        no_wrap=True,
        end="",
    )
    if width is not None:
        text.truncate(width, overflow="ellipsis")
    rich = _console()
    return "".join(
        segment.style.render(segment.text) if segment.style else segment.text
        for segment in text.render(rich)
    )


def inked(text: str, ink: Ink) -> str:
    """Return a passage with its colour, whatever its length; what it holds commands nothing."""
    from rich.style import Style  # noqa: PLC0415 - only what draws waits for rich

    return Style.parse(STYLES[ink]).render(visible(text))


def cells_of(line: Line, width: int) -> int:
    """Return how many cells a line takes that is cut at `width`."""
    from rich.cells import cell_len  # noqa: PLC0415 - only what draws waits for rich

    return min(cell_len(visible_line(plain_text(line))), width)


@cache
def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415 - only what draws waits for rich

    return Console(color_system="standard", force_terminal=True, emoji=False, highlight=False)
