"""The same faults with the real vLLM on a twin. A start takes most of a minute."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.client import ServedModel
from tests.engine.conftest import free_port, until
from tests.engine.program import Program
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.runs("checkpoint", "down", "up"),
]

PORT = free_port()
NAME = unique_name("faulty")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    made = twin_user(tmp_path_factory.mktemp("faults-vllm"), port=PORT)
    yield made
    made.run("down", "--yes", NAME)


def fact(host: DockerHost) -> ContainerFact | None:
    return host.find_container(f"sparkdeploy-{NAME}")


def log(host: DockerHost) -> str:
    found = fact(host)
    return b"".join(host.logs(found.container_id)).decode(errors="replace") if found else ""


def engine_pid(host: DockerHost) -> int:
    """Wait for vLLM itself, the guard's child, and return it."""
    found = fact(host)
    assert found is not None
    guard = int(host.inspect(found.container_id)["State"]["Pid"])
    children = Path(f"/proc/{guard}/task/{guard}/children")
    until(lambda: bool(children.read_text().split()))
    return int(children.read_text().split()[0])


def start(program: Program, *more: str) -> subprocess.Popen[str]:
    return program.start("up", TWIN_RECIPE, "--name", NAME, "--yes", *more)


def is_healthy() -> bool:
    with ServedModel(f"http://127.0.0.1:{PORT}") as model:
        return model.is_healthy()


def test_a_killed_command_is_followed_by_one_that_finishes(
    program: Program, host: DockerHost
) -> None:
    command = start(program)
    until(lambda: "non-default args" in log(host), timeout_s=600)
    command.kill()
    command.communicate()
    done = program.run("up", TWIN_RECIPE, "--name", NAME)
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stderr
    assert is_healthy()


def test_vllm_killed_after_it_was_healthy_comes_back_by_itself(
    program: Program, host: DockerHost
) -> None:
    time.sleep(3)  # the guard asks for health every two seconds
    killed = engine_pid(host)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_healthy())
    until(is_healthy, timeout_s=300)
    assert '"event": "restart"' in log(host)
