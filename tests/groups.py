"""Pytest plugin of tests/run: which tests share a worker, what groups took, and what to repeat.

A folder with a budget is a group: its tests share engines, machines and ports, and run one after
the other. Every other test file is a group of its own.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.terminal import TerminalReporter

UNIT = "tests/unit"
REAL_VLLM = "tests/engine/vllm"
"""Its starts come one after the other: the whole run takes as long as they do."""
COURTESY = 5
"""How nice all others are; nicer ones would starve beside what else the machine runs."""
BUDGETS_S: dict[str, int] = yaml.safe_load(Path(__file__).with_name("budget.yaml").read_text())


def folder_of(nodeid: str) -> str:
    """Return the folder with a budget that a test is in, or else its file."""
    file = nodeid.partition("::")[0]
    around = (str(parent) for parent in PurePosixPath(file).parents)
    return next((folder for folder in around if folder in BUDGETS_S), file)


def group_of(nodeid: str) -> str:
    """Return what a worker takes as a whole; unit tests share nothing but their file."""
    folder = folder_of(nodeid)
    return nodeid.partition("::")[0] if folder == UNIT else folder


class _Groups(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Hand out whole groups, in the order of the collection."""
    config.option.loadscopereorder = False
    return _Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put groups in the budget's order, and last in each what another one may keep waiting."""
    places = {folder: place for place, folder in enumerate(BUDGETS_S)}
    items.sort(key=lambda item: (places.get(folder_of(item.nodeid), len(places)), _waits(item)))


def _waits(item: pytest.Item) -> bool:
    """Say whether a test needs the turn of the real vLLM, which the vllm folder keeps for long."""
    return isinstance(item, pytest.Function) and "turn" in item.fixturenames


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let what starts a real vLLM have the processors first."""
    if "PYTEST_XDIST_WORKER" in os.environ and group_of(item.nodeid) != REAL_VLLM:
        os.nice(max(COURTESY - os.nice(0), 0))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Write what each group took beside its budget.

    What to repeat of the tests that failed goes to the file SPARKDEPLOY_FAILED_TESTS, a line each.
    """
    kinds = (pytest.TestReport, pytest.CollectReport)
    every = [one for kind in terminalreporter.stats.values() for one in kind]
    reports = [report for report in every if isinstance(report, kinds)]
    terminalreporter.section("seconds by group")
    for line in group_lines(item for item in reports if isinstance(item, pytest.TestReport)):
        terminalreporter.line(line)
    noted = os.environ.get("SPARKDEPLOY_FAILED_TESTS")
    if noted:
        failed = dict.fromkeys(_to_repeat(report) for report in reports if report.failed)
        Path(noted).write_text("".join(f"{name}\n" for name in failed))


def group_lines(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return a line for each folder: seconds of its tests with their fixtures, and its budget."""
    took_s: defaultdict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for report in reports:
        folder = folder_of(report.nodeid)
        took_s[folder] += report.duration
        tests[folder] += report.when == "call"
    return [
        f"{folder:24} {tests[folder]:5} tests {seconds:6.0f} s, budget {BUDGETS_S[folder]:4} s"
        f"{'   OVER' if seconds > BUDGETS_S[folder] else ''}"
        for folder, seconds in sorted(took_s.items(), key=lambda item: -item[1])
        if folder in BUDGETS_S
    ]


def _to_repeat(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Tests of a file that build on one another do not pass alone; no test was found in some."""
    if isinstance(report, pytest.CollectReport) or "in_order" not in report.keywords:
        return report.nodeid
    return report.nodeid.partition("::")[0]
