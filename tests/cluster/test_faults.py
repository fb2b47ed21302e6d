"""Each fault for real, on two machines, with a stand-in for vLLM and the product for all else.

The tests build on one another: the first `up` brings the worker what the next ones find there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sparkdeploy import labels
from tests.cluster.conftest import Program, docker_of, ours, said_in_time, start_loading, up
from tests.cluster.machines import TWINS, Machine, configure
from tests.engine.conftest import until
from tests.unit.conftest import REPOSITORY

pytestmark = [
    pytest.mark.docker,
    # Five minutes of starts on two machines.
    pytest.mark.slow,
    pytest.mark.in_order,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("stand_in", "recipe", "nothing_stays"),
    pytest.mark.runs("checkpoint", "down", "logs", "plan", "rollback", "status", "up"),
]


def spoken(program: Program, process: subprocess.Popen[str], since_s: float) -> str:
    """What an `up` that fails by itself says; the fault can be known since `since_s`."""
    done = program.finish(process)
    assert done.returncode == 7, done.stderr
    said_in_time(current_fault(), since_s)
    return done.stderr


def current_fault() -> str:
    """The name of the test that runs, for its figure."""
    return os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].partition(" ")[0]


def test_only_the_head_has_a_port_and_nothing_is_privileged(
    program: Program, head: Machine, worker: Machine
) -> None:
    assert up(program).returncode == 0
    for machine in (head, worker):
        with docker_of(machine) as host:
            (fact,) = host.own_containers()
            record = host.inspect(fact.container_id)
            assert record["HostConfig"]["Privileged"] is False
            assert record["HostConfig"]["CapDrop"] == ["ALL"]
            assert fact.labels[labels.NODES] == "spark-a,spark-b"
    assert ":18700" not in worker.run("ss -Hltn")
    assert "127.0.0.1:18700" in head.run("ss -Hltn")


def test_a_head_killed_while_loading_is_named_not_its_worker(
    program: Program, head: Machine, worker: Machine
) -> None:
    process = start_loading(program, worker)
    since_s = time.monotonic()
    head.run("docker kill sparkdeploy-main")
    assert "error: spark-a: sparkdeploy-main died (exit code 137" in spoken(
        program, process, since_s
    )


def pull_the_cable(worker: Machine) -> None:
    worker.run(f"ip link set {TWINS[0][0]} down")


def plug_it_in(worker: Machine) -> None:
    configure(worker, TWINS[0][0])


@pytest.mark.parametrize(
    ("lose", "mend"),
    [
        (lambda worker: worker.stop("dockerd"), lambda worker: worker.start_dockerd()),
        (pull_the_cable, plug_it_in),
    ],
    ids=["dockerd", "cable"],
)
def test_a_node_that_is_lost_while_loading_is_named(
    program: Program,
    worker: Machine,
    lose: Callable[[Machine], None],
    mend: Callable[[Machine], None],
) -> None:
    process = start_loading(program, worker)
    since_s = time.monotonic()
    lose(worker)
    try:
        said = spoken(program, process, since_s)
    finally:
        mend(worker)
    assert "spark-b: lost while it was waited for" in said
    assert "what was started there may remain" in said


def test_ssh_that_dies_while_loading_is_named_and_cleaned_up_later(
    program: Program, worker: Machine
) -> None:
    process = start_loading(program, worker)
    since_s = time.monotonic()
    worker.stop("sshd")
    try:
        said = spoken(program, process, since_s)
        left = program.run("down", "--yes", "main")
        assert "sparkdeploy-main may remain there" in left.stderr
        assert ours(worker) == ["sparkdeploy-main"]
        (row,) = program.answer("status")
        assert (row["name"], row["state"]) == ("main", "left over")
    finally:
        worker.start_sshd()
    assert "error: spark-b: lost while it was waited for" in said
    assert "removed spark-b:sparkdeploy-main" in program.run("down", "--yes", "main").stderr


def test_a_node_that_is_gone_while_serving_is_said_and_cleaned_when_it_is_back(
    program: Program, worker: Machine
) -> None:
    assert up(program).returncode == 0
    worker.stop("sshd")
    try:
        since_s = time.monotonic()
        (row,) = program.answer("status")
        said_in_time(current_fault(), since_s)
        log = program.run("logs", "main", "--node", "spark-b")
        left = program.run("down", "--yes", "main")
    finally:
        worker.start_sshd()
    assert row["state"] == "broken"
    assert row["members"][0]["state"].startswith("does not answer (spark-b: ")
    assert log.returncode == 4
    assert "spark-b: nothing listens for ssh" in log.stderr
    assert left.returncode == 0
    assert "sparkdeploy-main may remain there" in left.stderr
    assert ours(worker) == ["sparkdeploy-main"]
    # The next `up` finds what is left, and takes its place.
    assert up(program).returncode == 0
    assert program.answer("status")[0]["state"] == "healthy"


def test_after_a_change_of_the_plugin_only_its_context_travels(
    program: Program, head: Machine
) -> None:
    assert up(program, "--prepare").returncode == 0
    changed = head.own / "changed"
    shutil.copytree(
        REPOSITORY / "sparkdeploy",
        changed / "sparkdeploy",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    with (changed / "sparkdeploy/vllm_plugin/sparkdeploy_vllm/announce.py").open("a") as file:
        file.write("# changed\n")
    done = up(replace(program, package=changed), "--prepare")
    assert done.returncode == 0, done.stderr
    assert "spark-b: 0 B sent (engine 0 B, weights 0 B)" in done.stderr


@contextlib.contextmanager
def small_disk(worker: Machine, size_mb: int) -> Iterator[str]:
    """Give the worker's Docker Engine an empty disk of this size; yield where it is mounted."""
    with docker_of(worker) as host:
        root = host.info().root_dir
    worker.stop("dockerd")
    worker.run(f"mount -t tmpfs -o size={size_mb}m tmpfs {root}")
    worker.start_dockerd()
    try:
        yield root
    finally:
        worker.stop("dockerd")
        worker.run(f"umount -l {root}")
        worker.start_dockerd()


def test_a_disk_that_fills_up_during_the_transfer_is_named(
    program: Program, worker: Machine
) -> None:
    with small_disk(worker, 1200) as root:
        process = program.start("up", "tiny", "--cluster", "--yes", "--prepare")
        until(lambda: "docker-import-" in worker.run(f"ls {root}/tmp"))
        worker.run(f"dd if=/dev/zero of={root}/filler bs=1M count=1150 status=none", check=False)
        since_s = time.monotonic()
        done = program.finish(process)
        said_in_time(current_fault(), since_s)
    assert done.returncode == 4, done.stderr
    assert "spark-b: disk full while the engine image was loaded" in done.stderr
    assert up(program, "--prepare").returncode == 0
