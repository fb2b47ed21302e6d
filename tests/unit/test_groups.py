"""How tests/run puts tests on workers, and what it says of their seconds."""

from __future__ import annotations

from typing import Literal

import pytest

from tests import groups
from tests.unit.conftest import REPOSITORY

TESTS = REPOSITORY / "tests"


def test_every_folder_with_an_engine_has_a_budget_and_nothing_else_has() -> None:
    files = [*TESTS.glob("engine/**/test_*.py"), *TESTS.glob("cluster/**/test_*.py")]
    folders = {str(file.parent.relative_to(REPOSITORY)) for file in files}
    assert set(groups.BUDGETS_S) == folders | {groups.UNIT}


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/engine/vllm/test_rehearsals.py::test_a[1]", "tests/engine/vllm"),
        ("tests/cluster/test_check.py::test_a", "tests/cluster"),
        ("tests/unit/plan/test_make.py::test_a", "tests/unit/plan/test_make.py"),
        ("tests/other/test_it.py::test_a[a/b]", "tests/other/test_it.py"),
    ],
)
def test_a_worker_takes_a_folder_with_an_engine_or_a_file(nodeid: str, group: str) -> None:
    assert groups.group_of(nodeid) == group


def test_the_seconds_of_a_folder_count_its_fixtures_and_stand_beside_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "BUDGETS_S", {"tests/a": 5, "tests/b": 60})
    reports = [
        report("tests/a/test_x.py::test_1", "setup", 3),
        report("tests/a/test_x.py::test_1", "call", 2),
        report("tests/a/deep/test_y.py::test_2", "call", 4),
        report("tests/b/test_z.py::test_3", "call", 40),
        report("tests/c/test_z.py::test_4", "call", 90),
    ]
    assert [line.split() for line in groups.group_lines(reports)] == [
        ["tests/b", "1", "tests", "40", "s,", "budget", "60", "s"],
        ["tests/a", "2", "tests", "9", "s,", "budget", "5", "s", "OVER"],
    ]


def report(nodeid: str, when: Literal["setup", "call"], duration_s: float) -> pytest.TestReport:
    """The report of one passed phase of a test."""
    return pytest.TestReport(nodeid, (nodeid, 0, ""), {}, "passed", None, when, duration=duration_s)
