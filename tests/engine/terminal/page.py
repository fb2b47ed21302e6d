"""The screens of docs/terminal.md: written by the tests that see them, and held against them."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    import pytest

PAGE = REPOSITORY / "docs" / "terminal.md"
SIGNS = re.compile(r"^\s*([✓✗▸·|]|error:|fix:|warning:|try:|next:|█)", re.MULTILINE)
"""What a line of a screen is."""


def hold_screen(request: pytest.FixtureRequest, name: str, shown: str) -> None:
    """Hold the page's screen of this name against what is shown: it has the same kinds of lines.

    Times and the moment of a look differ from run to run. `--update-golden` writes the screen.
    """
    page = PAGE.read_text(encoding="utf-8")
    mark = f"<!-- screen: {name} -->\n"
    before, found, after = page.partition(mark)
    assert found, f"{PAGE} has no {mark}"
    kept = re.match(r"```text\n(.*?)\n```\n", after, re.DOTALL)
    if request.config.getoption("--update-golden"):
        rest = after[kept.end() :] if kept else after
        block = f"```text\n{_anywhere(shown)}\n```\n"
        PAGE.write_text(before + mark + block + rest, encoding="utf-8")
        return
    assert kept, f"{name} is not on the page: run pytest with --update-golden and review it"
    assert _kinds(kept[1]) == _kinds(shown)


def _kinds(shown: str) -> set[str]:
    return set(SIGNS.findall(shown))


def _anywhere(shown: str) -> str:
    """Take out what is this machine's: its name, and where a test keeps its files."""
    shown = re.sub(rf"\b{re.escape(socket.gethostname().lower())}\b", "spark", shown)
    shown = re.sub(
        r"/tmp/[\w./\n-]*?/(?:user/)?(?=model\b|state\b|config\b|hub\b)", "/home/you/", shown
    )
    return shown.strip("\n")
