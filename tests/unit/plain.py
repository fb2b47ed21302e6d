"""What is printed as paragraphs and tables, as plain text."""

from __future__ import annotations

from collections.abc import Iterable

from sparkdeploy.terminal.style import plain_text
from sparkdeploy.terminal.tables import Block, laid_out


def plain_lines(blocks: Iterable[Block], width: int | None = None) -> list[str]:
    """Return the lines as a pipe gets them, or as a terminal of that width shows them."""
    return [plain_text(line) for line in laid_out(blocks, width)]
