"""`--on NODE` for real: a machine without Docker deploys with another's program over its sshd."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Program, docker_of, give_model, give_only, ours
from tests.cluster.machines import HOME, Machine
from tests.cluster.stand_in.image import build_stand_in_engine
from tests.engine.conftest import until
from tests.engine.shipped_stages import shipped_stages

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("recipe", "spark"),
    pytest.mark.runs("down", "logs", "plan", "status", "up"),
]
SPARK = "spark-b"
PORT = 18700
RECIPE = f"{HOME}/config/recipes/tiny.yaml"
"""A file of the laptop's: to the other machine it is somebody else's recipe."""


@pytest.fixture(scope="module")
def laptop(head: Machine) -> Iterator[Machine]:
    """A machine whose Docker Engine does not run."""
    head.stop("dockerd")
    yield head
    head.start_dockerd()


@pytest.fixture(scope="module")
def spark(laptop: Machine, worker: Machine) -> None:
    """The other one has the program, the stand-in and a model, and no recipe."""
    program = f"exec {shlex.quote(sys.executable)} -P -m sparkdeploy"
    worker.give_command("sparkdeploy", f'{program} "$@"')
    give_only(worker, shipped_stages()[:1])
    with docker_of(worker) as host:
        build_stand_in_engine(host)
    give_model(worker)


@pytest.fixture(autouse=True)
def nothing_is_left(program: Program, worker: Machine) -> Iterator[None]:
    yield
    done = program.run("down", "--yes", "--on", SPARK)
    assert done.returncode == 0, done.stderr
    assert ours(worker) == []


@pytest.mark.slow
def test_every_fact_is_the_nodes_own(program: Program, worker: Machine) -> None:
    here = program.run("plan", "tiny")
    assert "docker: images and containers are unknown" in here.stdout
    planned = program.answer("plan", RECIPE, "--allow-unsafe", "--on", SPARK)
    assert "docker" not in json.dumps(planned["warnings"]).lower()
    assert ours(worker) == []


def test_a_deployment_is_started_asked_and_ended_there(
    program: Program, head: Machine, worker: Machine
) -> None:
    done = program.run("up", RECIPE, "--allow-unsafe", "--yes", "--on", SPARK)
    assert done.returncode == 0, done.stderr
    assert f"main answers at http://127.0.0.1:{PORT}/v1" in done.stdout
    tunnel = f"ssh -N -L {PORT}:127.0.0.1:{PORT} root@{worker.address}"
    assert f"to reach it from where you are: {tunnel}\n" in done.stderr
    assert len(ours(worker)) == 1
    (row,) = program.answer("status", "--on", f"root@{worker.address}")
    assert (row["name"], row["recipe"], row["port"]) == ("main", "tiny", PORT)
    assert "startup complete" in program.run("logs", "--on", SPARK).stdout
    served = head.run(
        f"{tunnel} & trap 'kill $!' EXIT; for _ in $(seq 50); do sleep 0.1; "
        f"curl -sf http://127.0.0.1:{PORT}/v1/models && exit; done; exit 1"
    )
    assert json.loads(served)["data"]
    again = program.run("up", RECIPE, "--allow-unsafe", "--yes", "--on", SPARK)
    assert "main was up already" in again.stdout, again.stderr


@pytest.mark.slow
def test_a_detached_start_goes_on_there(program: Program, worker: Machine) -> None:
    done = program.run("up", RECIPE, "--allow-unsafe", "--yes", "--detach", "--on", SPARK)
    assert done.returncode == 0, done.stderr
    until(lambda: program.answer("status", "--on", SPARK)[0]["state"] == "healthy")
