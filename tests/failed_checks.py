"""Pytest plugin of tests/run: names failed source checks, and notes failed tests for a repeat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Write the names in SPARKDEPLOY_FAILED_CHECKS above the last line.

    The tests that failed go to the file SPARKDEPLOY_FAILED_TESTS, a line each.
    """
    failed = os.environ.get("SPARKDEPLOY_FAILED_CHECKS")
    if failed:
        terminalreporter.section("source checks")
        terminalreporter.line(f"FAILED before the tests: {failed}", red=True)
    noted = os.environ.get("SPARKDEPLOY_FAILED_TESTS")
    if noted:
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        names = dict.fromkeys(report.nodeid for report in reports)
        Path(noted).write_text("".join(f"{name}\n" for name in names))
