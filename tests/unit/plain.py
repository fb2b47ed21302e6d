"""What is printed as paragraphs and tables, as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.terminal.style import plain_text
from sparkdeploy.terminal.tables import laid_out

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.terminal.tables import Block


def plain_lines(blocks: Iterable[Block], width: int | None = None) -> list[str]:
    """Return the lines as a pipe gets them, or as a terminal of that width shows them."""
    return [plain_text(line) for line in laid_out(blocks, width)]
