"""Pytest plugin of tests/run: which tests share a worker, what groups took, and what to repeat.

A folder with a budget is a group: its tests share engines, machines and ports, and run one after
the other. Every other test file is a group of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from _pytest.terminal import TerminalReporter
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.processor import Account, ContainerWatch, machine_s, tree_s

UNIT = "tests/unit"
COUNTS_AS_UNIT = ("tests/laws/",)
LAWS = (
    *("tests/laws/", "tests/unit/test_layers.py", "tests/unit/test_typed_commands.py"),
    "tests/unit/test_imports_of_tests.py",
)
"""What parses the whole tree shares a worker, which parses each file once."""
REAL_VLLM = "tests/engine/vllm"
"""Its starts come one after the other: the whole run takes as long as they do."""
COURTESY = 5
"""How nice all others are; nicer ones would starve beside what else the machine runs."""
BUDGETS_S: dict[str, int] = yaml.safe_load(Path(__file__).with_name("budget.yaml").read_text())
WHOLE_S = BUDGETS_S.pop("whole run")
BEGAN = "SPARKDEPLOY_TESTS_BEGAN_S"
"""The machine's processor seconds when the run began, of which pytest is a part."""


def folder_of(nodeid: str) -> str:
    """Return the folder with a budget that a test is in, or else its file."""
    file = nodeid.partition("::")[0]
    if file.startswith(COUNTS_AS_UNIT):
        return UNIT
    around = (str(parent) for parent in PurePosixPath(file).parents)
    return next((folder for folder in around if folder in BUDGETS_S), file)


def group_of(nodeid: str) -> str:
    """Return what a worker takes as a whole; unit tests share nothing but their file."""
    if nodeid.startswith(LAWS):
        return "tests/laws"
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


ACCOUNT = pytest.StashKey[Account]()
TAKEN = pytest.StashKey[dict[str, float]]()
"""The processor seconds of all workers, by folder."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Charge the test's folder from now on, and let what starts a real vLLM have the processors."""
    stash = item.config.stash
    if ACCOUNT not in stash:
        stash[ACCOUNT] = _open_account(item.config)
    stash[ACCOUNT].turn_to(folder_of(item.nodeid))
    if "PYTEST_XDIST_WORKER" in os.environ and group_of(item.nodeid) != REAL_VLLM:
        os.nice(max(COURTESY - os.nice(0), 0))


def _open_account(config: Any) -> Account:
    """Count what this worker's processes take, and containers that mount its folder."""
    watch = ContainerWatch("/".join(config._tmp_path_factory.getbasetemp().parts[-2:]) + "/")
    return Account(lambda: tree_s(os.getpid()) + watch.total_s(), "finding the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's account to the process that writes the summary."""
    if ACCOUNT in session.config.stash:
        account = session.config.stash[ACCOUNT]
        account.turn_to(None)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["processor_s"] = dict(account.charged_s)
        _add(session.config, account.charged_s)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up the accounts of the workers."""
    _add(node.config, getattr(node, "workeroutput", {}).get("processor_s", {}))


def _add(config: pytest.Config, charged_s: Mapping[str, float]) -> None:
    taken_s = config.stash.setdefault(TAKEN, {})
    for folder, seconds in charged_s.items():
        taken_s[folder] = taken_s.get(folder, 0) + seconds


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Write what each group took beside its budget.

    What to repeat of the tests that failed goes to the file SPARKDEPLOY_FAILED_TESTS, a line each.
    """
    kinds = (pytest.TestReport, pytest.CollectReport)
    every = [one for kind in terminalreporter.stats.values() for one in kind]
    reports = [report for report in every if isinstance(report, kinds)]
    tests = Counter(folder_of(report.nodeid) for report in reports if report.when == "call")
    terminalreporter.section("processor seconds")
    taken_s = config.stash.setdefault(TAKEN, {})
    for line in group_lines(taken_s, tests, _since_the_start_s()):
        terminalreporter.line(line)
    noted = os.environ.get("SPARKDEPLOY_FAILED_TESTS")
    if noted:
        failed = dict.fromkeys(_to_repeat(report) for report in reports if report.failed)
        Path(noted).write_text("".join(f"{name}\n" for name in failed))


def _since_the_start_s() -> float | None:
    return machine_s() - float(os.environ[BEGAN]) if BEGAN in os.environ else None


def group_lines(
    taken_s: Mapping[str, float], tests: Mapping[str, int], whole_s: float | None
) -> list[str]:
    """Return a line for each folder, and one for what nobody was charged with."""
    lines = [
        f"{folder:24} {tests.get(folder, 0):5} tests {_beside(seconds, BUDGETS_S.get(folder))}"
        for folder, seconds in sorted(taken_s.items(), key=lambda item: -item[1])
    ]
    if whole_s is not None:
        lines.append(f"{'rest':36} {whole_s - sum(taken_s.values()):6.0f} s")
        lines.append(f"{'so far, of the machine':36} {_beside(whole_s, WHOLE_S)}")
    return lines


def _beside(seconds: float, budget_s: int | None) -> str:
    if budget_s is None:
        return f"{seconds:6.0f} s"
    over = "   OVER" if seconds > budget_s else ""
    return f"{seconds:6.0f} s, budget {budget_s:4} s{over}"


def _to_repeat(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Tests of a file that build on one another do not pass alone; no test was found in some."""
    if isinstance(report, pytest.CollectReport) or "in_order" not in report.keywords:
        return report.nodeid
    return report.nodeid.partition("::")[0]
