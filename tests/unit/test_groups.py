"""How tests/run puts tests on workers, and what it says of their seconds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import groups
from tests.processor import Account, tree_s
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


def test_laws_count_as_unit_tests() -> None:
    assert groups.folder_of("tests/laws/test_messages.py::test_a") == groups.UNIT
    assert groups.group_of("tests/laws/test_messages.py::test_a") == "tests/laws"


def test_the_seconds_of_a_folder_stand_beside_its_budget_and_the_rest_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "BUDGETS_S", {"tests/a": 5, "tests/b": 60})
    monkeypatch.setattr(groups, "WHOLE_S", 80)
    taken_s = {"tests/a": 9.2, "tests/b": 40.0, "tests/c": 2.0}
    lines = groups.group_lines(taken_s, {"tests/b": 1, "tests/a": 2}, 75.0)
    assert [line.split() for line in lines] == [
        ["tests/b", "1", "tests", "40", "s,", "budget", "60", "s"],
        ["tests/a", "2", "tests", "9", "s,", "budget", "5", "s", "OVER"],
        ["tests/c", "0", "tests", "2", "s"],
        ["rest", "24", "s"],
        ["so", "far,", "of", "the", "machine", "75", "s,", "budget", "80", "s"],
    ]


def test_seconds_are_charged_to_whoever_ran_when_they_were_spent() -> None:
    spent_s = iter([2.0, 3.0, 7.0, 12.0])
    account = Account(lambda: next(spent_s), "before")
    for name in ("a", "a", "b", None):
        account.turn_to(name)
    assert account.charged_s == {"before": 2.0, "a": 4.0, "b": 5.0}


def test_the_time_of_a_child_counts_while_it_lives_and_when_it_has_ended() -> None:
    before_s = tree_s(os.getpid())
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        assert tree_s(os.getpid()) - before_s >= 0.25
        child.kill()
    assert tree_s(os.getpid()) - before_s >= 0.25
