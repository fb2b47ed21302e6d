"""The screens of tests/golden/screens: written by the tests that see them, and held to them."""

from __future__ import annotations

import re
import socket

import pytest

from tests.unit.conftest import REPOSITORY

SCREENS = REPOSITORY / "tests" / "golden" / "screens"
SIGNS = re.compile(r"^\s*([✓✗▸·|]|error:|fix:|warning:|try:|next:|█)", re.MULTILINE)
"""What a line of a screen is."""


def hold_screen(request: pytest.FixtureRequest, name: str, shown: str) -> None:
    """Hold the kept screen of this name against what is shown: it has the same kinds of lines.

    Times and the moment of a look differ from run to run. `--update-golden` writes the screen.
    """
    kept = SCREENS / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        kept.write_text(f"{_anywhere(shown)}\n", encoding="utf-8")
    assert _kinds(kept.read_text(encoding="utf-8")) == _kinds(shown)


def _kinds(shown: str) -> set[str]:
    return set(SIGNS.findall(shown))


def _anywhere(shown: str) -> str:
    """Take out what is this machine's: its name, and where a test keeps its files."""
    shown = re.sub(rf"\b{re.escape(socket.gethostname().lower())}\b", "spark", shown)
    shown = re.sub(
        r"/tmp/[\w./\n-]*?/(?:user/)?(?=model\b|state\b|config\b|hub\b)", "/home/you/", shown
    )
    return shown.strip("\n")
