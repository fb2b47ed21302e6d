"""Ray's own cluster, formed by the product over two machines; vLLM's part is a stand-in."""

from __future__ import annotations

import time

import pytest

from tests.cluster.conftest import Program, ours, said_in_time, up
from tests.cluster.machines import Machine
from tests.engine.conftest import until

pytestmark = [
    pytest.mark.docker,
    # Ray is 0.2 GB to fetch and to send, and starts a dozen programs.
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("ray_stand_in", "recipe"),
    pytest.mark.runs("checkpoint", "down", "logs", "status", "up"),
]
RAY = ("--set", "cluster.backend=ray")


def ray_status(machine: Machine) -> str:
    address = f"{machine.address}:6379"
    return machine.run(f"docker exec sparkdeploy-main ray status --address {address}", check=False)


def test_both_nodes_are_in_rays_cluster_and_nothing_of_it_stays(
    program: Program, head: Machine, worker: Machine
) -> None:
    done = up(program, *RAY)
    assert done.returncode == 0, done.stderr
    until(lambda: ray_status(head).count(" 1 node_") == 2)
    (row,) = program.answer("status")
    assert (row["state"], row["members"]) == ("healthy", [{"node": "spark-b", "state": "running"}])
    assert "ray_nodes_joined" in program.run("logs", "main", "--node", "spark-a").stdout
    assert program.run("down", "--yes", "main").returncode == 0
    assert ours(head) == ours(worker) == []
    for machine in (head, worker):
        machine.run("! pgrep -x raylet && ! pgrep -x gcs_server")


def test_a_ray_worker_that_dies_while_the_head_waits_is_named(
    program: Program, head: Machine, worker: Machine
) -> None:
    process = program.start("up", "tiny", "--cluster", "--yes", *RAY)
    until(lambda: bool(worker.run("docker ps --quiet")), timeout_s=300)
    since_s = time.monotonic()
    worker.run("docker kill sparkdeploy-main")
    done = program.finish(process)
    said_in_time("a Ray worker killed", since_s)
    assert done.returncode == 7, done.stderr
    assert "spark-b: sparkdeploy-main died (exit code 137" in done.stderr
    assert ours(head) == ours(worker) == []
