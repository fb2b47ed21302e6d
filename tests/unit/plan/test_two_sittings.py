"""The sittings of the stand of two GPUs: what starts together, and who gets a signal."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.plan.stand import loaded

if TYPE_CHECKING:
    from types import ModuleType

    from sparkdeploy.recipe.load import Library


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("two", monkeypatch)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("two_plan", monkeypatch)


def test_each_sitting_names_servers_that_are_there_and_breaks_some_of_its_own(
    two: ModuleType, plan: ModuleType
) -> None:
    ranked = {wanted.name for wanted in (*plan.NATIVE, *plan.RAY)}
    there = ranked | {spec["name"] for spec in two.ALONE}
    assert {*two.SITTINGS["native"].names, *two.SITTINGS["ray"].names} == there
    for name, sitting in two.SITTINGS.items():
        assert set(sitting.names) <= there, name
        assert set(sitting.faults) <= ranked & set(sitting.names), name
        references = {two.REFERENCES.get(server, "one-base") for server in sitting.names}
        assert references <= set(sitting.names), name


def test_no_two_servers_share_an_address_or_a_port_of_a_node(
    plan: ModuleType, shipped: Library
) -> None:
    wanted = (*plan.NATIVE, *plan.RAY)
    servers = [plan.described(shipped, one, number) for number, one in enumerate(wanted)]
    hosts = [rank["env"]["VLLM_HOST_IP"] for server in servers for rank in server["ranks"]]
    assert len(set(hosts)) == len(hosts) == 2 * len(wanted)
    assert {server["backend"] for server in servers[-len(plan.RAY) :]} == {"ray"}


def test_over_ray_the_head_gets_the_flags_of_the_stand_and_the_worker_none(
    two: ModuleType, plan: ModuleType, shipped: Library
) -> None:
    server = two.TwoRanks.__new__(two.TwoRanks)
    server.spec = plan.described(shipped, plan.RAY[-1], 0)
    head, worker = (server._rank_command(rank) for rank in (0, 1))
    assert head[1:3] == ["-m", "sparkdeploy_vllm.ray_head"]
    assert head.index("--nodes") < head.index("vllm") < head.index("--enforce-eager")
    # A flag of the stand's takes the place of the recipe's.
    assert head.count("--served-model-name") == head.count("--gpu-memory-utilization") == 1
    assert head[head.index("--pipeline-parallel-size") + 1] == "2"
    assert worker[1:] == list(server.spec["ranks"][1]["argv"][2:])


def test_servers_over_ray_look_for_their_port_where_no_other_looks(
    two: ModuleType, plan: ModuleType
) -> None:
    count = len((*plan.NATIVE, *plan.RAY))
    firsts = [two.first_ray_port(plan.FIRST_API_PORT + number) + 100 for number in range(count)]
    masters = range(plan.FIRST_MASTER_PORT, plan.FIRST_MASTER_PORT + 10 * count)
    looked_at = [port for first in firsts for port in range(first, first + 32)]
    assert len({*looked_at, *masters}) == 32 * count + 10 * count


@pytest.mark.outside
def test_a_signal_reaches_what_left_the_process_group(two: ModuleType, tmp_path: Path) -> None:
    told = tmp_path / "number"
    script = f"setsid sh -c 'echo $$ > {told}; sleep 60; true' & sleep 60; true"
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    try:
        while not told.exists() or not told.read_text().strip():
            time.sleep(0.02)
        number = int(told.read_text())
        two.send(process, signal.SIGSTOP)
        wait_for_state(number, "T")
        wait_for_state(process.pid, "T")
    finally:
        two.send(process, signal.SIGKILL)
        process.wait()


def wait_for_state(number: int, wanted: str) -> None:
    seen = ""
    deadline = time.monotonic() + 10
    while seen != wanted and time.monotonic() < deadline:
        seen = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    assert seen == wanted
