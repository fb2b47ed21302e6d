"""The door to rich, which is loaded when the first line is drawn: lines of ink on a terminal."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, TextIO

from sparkdeploy.ink import Ink
from sparkdeploy.terminal import visible, visible_line

if TYPE_CHECKING:
    from rich.console import Console

    from sparkdeploy.ink import Line

STYLES = {
    Ink.PLAIN: "",
    Ink.STRONG: "bold",
    Ink.QUIET: "dim",
    Ink.GOOD: "green",
    Ink.CAUTION: "yellow",
    Ink.BAD: "bold red",
}


def draws_on(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that takes colours and cursor movements.

    NO_COLOR (no-color.org) and TERM=dumb ask for plain lines.
    """
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return not is_plain and stream.isatty()


def painted(line: Line, width: int) -> str:
    """Return a line with its colours, cut at `width` cells: what a terminal's row takes."""
    from rich.text import Text  # noqa: PLC0415 - only what draws waits for rich

    text = Text.assemble(
        *((visible_line(piece.text), STYLES[piece.ink]) for piece in line),
        no_wrap=True,
        end="",
    )
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


@cache
def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415 - only what draws waits for rich

    return Console(color_system="standard", force_terminal=True, emoji=False, highlight=False)
