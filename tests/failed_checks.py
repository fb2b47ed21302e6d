"""Pytest plugin of tests/run: names failed source checks, and notes failed tests for a repeat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

IN_ORDER = pytest.StashKey[set[str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Remember the files whose tests build on one another: none of those passes alone."""
    session.config.stash[IN_ORDER] = {
        item.nodeid.partition("::")[0]
        for item in session.items
        if item.get_closest_marker("in_order")
    }


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Write the names in SPARKDEPLOY_FAILED_CHECKS above the last line.

    What to repeat of those that failed goes to the file SPARKDEPLOY_FAILED_TESTS, a line each.
    """
    failed = os.environ.get("SPARKDEPLOY_FAILED_CHECKS")
    if failed:
        terminalreporter.section("source checks")
        terminalreporter.line(f"FAILED before the tests: {failed}", red=True)
    noted = os.environ.get("SPARKDEPLOY_FAILED_TESTS")
    if noted:
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        in_order = terminalreporter.config.stash.get(IN_ORDER, set[str]())
        names = dict.fromkeys(_to_repeat(report.nodeid, in_order) for report in reports)
        Path(noted).write_text("".join(f"{name}\n" for name in names))


def _to_repeat(name: str, in_order: set[str]) -> str:
    file = name.partition("::")[0]
    return file if file in in_order else name
