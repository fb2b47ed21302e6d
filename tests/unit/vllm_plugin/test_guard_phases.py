"""Whenever a stop signal comes, the guard ends with an honest code and starts nothing after it."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.unit.vllm_plugin import guard_phases
from tests.unit.vllm_plugin.guarded import PLUGIN_TREE

pytestmark = pytest.mark.outside

Outcome = tuple[int, int, list[str]]
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
BY_SIGNAL = -1
"""128 plus the signal's number."""

EXPECTED: dict[str, Outcome] = {
    "before_the_start": (BY_SIGNAL, 0, []),
    "while_starting": (BY_SIGNAL, 1, []),
    "running_not_healthy": (BY_SIGNAL, 1, []),
    "running_healthy": (BY_SIGNAL, 1, []),
    "running_and_ends_well": (0, 1, []),
    "running_and_ignored": (143, 1, ["grace_over"]),
    "again_in_grace": (21, 1, []),
    "while_the_group_is_killed": (7, 1, []),
    "while_the_group_is_killed_after_an_end_with_0": (1, 1, ["ended_without_stop"]),
    "between_death_and_restart": (7, 1, ["restart"]),
    "during_a_memory_trip": (86, 1, ["memory_floor"]),
    "in_the_last_exit": (7, 1, []),
}
EXPECTED_WITHOUT_SIGNAL: dict[str, Outcome] = {
    "no_signal": (7, 3, ["restart", "restart"]),
    "no_signal_and_idle_and_the_stop_is_ignored": (88, 1, ["idle", "grace_over"]),
    "no_signal_and_one_outlives_sigkill": (7, 1, ["still_there"]),
    "no_signal_and_one_outlives_a_memory_trip": (86, 1, ["memory_floor", "still_there"]),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """What came of every phase and signal."""
    done = subprocess.run(
        [sys.executable, guard_phases.__file__, str(tmp_path_factory.mktemp("phases"))],
        env={**os.environ, "PYTHONPATH": str(PLUGIN_TREE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("phase", EXPECTED)
def test_a_stop_in_any_phase(table: dict[str, list[object]], phase: str, name: str) -> None:
    code, starts, said = EXPECTED[phase]
    number = getattr(signal, name)
    wanted = [128 + number if code == BY_SIGNAL else code, starts, said]
    assert table[f"{phase} {name}"] == wanted


@pytest.mark.parametrize("phase", EXPECTED_WITHOUT_SIGNAL)
def test_nothing_is_started_beside_what_outlives_sigkill(
    table: dict[str, list[object]], phase: str
) -> None:
    assert table[f"{phase} -"] == [*EXPECTED_WITHOUT_SIGNAL[phase]]


def test_every_phase_is_in_the_table() -> None:
    assert [phase.__name__ for phase in guard_phases.PHASES] == list(EXPECTED)
