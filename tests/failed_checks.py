"""Pytest plugin of tests/run: the closing report names the source checks that failed before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Write the names in SPARKDEPLOY_FAILED_CHECKS above the last line."""
    failed = os.environ.get("SPARKDEPLOY_FAILED_CHECKS")
    if failed:
        terminalreporter.section("source checks")
        terminalreporter.line(f"FAILED before the tests: {failed}", red=True)
