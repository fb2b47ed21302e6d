"""`stop`, `start`, `switch` and `up --stay` over two machines, with the stand-in.

The tests build on one another: the first of them starts what the others stop.
"""

from __future__ import annotations

import pytest

from tests.cluster.conftest import Program, docker_of, up
from tests.cluster.machines import Machine
from tests.cluster.main_deployment import MAIN, ONE, serving, whole

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.in_order,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("on_both", "recipe", "both_end_empty"),
    pytest.mark.runs("down", "restart", "rollback", "start", "status", "stop", "switch", "up"),
]


def ids(*machines: Machine) -> list[str]:
    return [serving(machine).container_id for machine in machines]


def test_all_parts_stop_and_the_very_same_start_together(
    program: Program, head: Machine, worker: Machine
) -> None:
    assert up(program, *ONE).returncode == 0
    before = ids(head, worker)
    done = program.run("stop", "main")
    assert done.returncode == 0, done.stderr
    assert [serving(machine).is_running for machine in (head, worker)] == [False, False]
    (row,) = program.answer("status")
    assert (row["state"], [member["state"] for member in row["members"]]) == (
        "stopped",
        ["stopped"],
    )
    assert program.answer("start", "main")["changed"] is True
    assert (ids(head, worker), whole(head, worker)) == (before, 1)
    assert program.answer("restart", "main")["changed"] is True
    assert (ids(head, worker), whole(head, worker)) == (before, 1)


def test_up_starts_what_was_stopped_whatever_became_of_the_other_part(
    program: Program, head: Machine, worker: Machine
) -> None:
    before = ids(head, worker)
    with docker_of(head) as host:
        host.stop(before[0])
    assert program.answer("status")[0]["state"] in {"stopped", "half stopped"}
    assert up(program, *ONE).returncode == 0
    assert (ids(head, worker), whole(head, worker)) == (before, 1)


@pytest.mark.parametrize("dies", ["head", "worker"])
def test_a_part_that_dies_ends_the_watch_of_a_unit_and_its_next_start_mends_all(
    program: Program, head: Machine, worker: Machine, dies: str
) -> None:
    stays = ("up", "tiny", "--cluster", "--yes", "--stay", *ONE)
    process = program.start(*stays)
    assert process.stdout is not None
    # From then on it only watches.
    while "answers at" not in process.stdout.readline():
        assert process.poll() is None
    machine = head if dies == "head" else worker
    with docker_of(machine) as host:
        host._api.kill(MAIN, "KILL")
    done = program.finish(process)
    assert done.returncode == 7, done.stderr
    assert f"{machine.name}: " in done.stderr
    assert [serving(it).is_running for it in (head, worker)] == [False, False]
    assert up(program, *ONE).returncode == 0
    assert whole(head, worker) == 1
