"""The same faults with the real vLLM on a twin. A start takes most of a minute."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.node.container import Mount
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import draft_plan
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.server.client import ServedModel
from sparkdeploy.server.health import ContainerDiedError, wait_until_answering
from sparkdeploy.settings import load_settings, resources
from tests.engine.conftest import free_port, until
from tests.engine.stand_in.replacing import put_in_place
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from tests.engine.program import Program

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.runs("checkpoint", "down", "up"),
]

PORT = free_port()
NAME = unique_name("faulty")
GIB = 1 << 30


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


def test_a_terminal_that_goes_away_brings_the_old_one_back(
    program: Program, host: DockerHost
) -> None:
    before = fact(host)
    command = start(program, "--set", "serve.max_num_seqs=2")
    until(lambda: "non-default args" in log(host) and fact(host) != before, timeout_s=300)
    command.send_signal(signal.SIGHUP)
    _, said = command.communicate(timeout=120)

    after = fact(host)
    assert command.returncode == 130, said
    assert before is not None
    assert after is not None
    assert after.container_id == before.container_id
    until(is_healthy, timeout_s=300)


def test_vllm_killed_after_it_was_healthy_comes_back_by_itself(
    program: Program, host: DockerHost
) -> None:
    time.sleep(3)  # the guard asks for health every two seconds
    killed = engine_pid(host)
    os.kill(killed, signal.SIGKILL)

    until(lambda: not is_healthy())
    until(is_healthy, timeout_s=300)
    assert '"event": "restart"' in log(host)


def test_vllm_that_eats_the_machine_is_stopped_by_the_guard(
    program: Program, host: DockerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program.run("down", "--yes", NAME).returncode == 0
    for name, value in program.env.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    library = Library((settings.config_dir / "recipes", resources() / "recipes"))
    plan = draft_plan(
        load_recipe(library, TWIN_RECIPE),
        settings,
        Nodes(node_behind("here", host)),
        Deployment(NAME),
    )
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {8 * GIB // 1024:>12} kB\n")
    spec = plan.head.spec
    assert spec is not None
    spec = dataclasses.replace(
        spec,
        command=("--meminfo", "/run/meminfo", *spec.command),
        mounts=(*spec.mounts, Mount(str(meminfo), "/run/meminfo")),
    )

    def empty() -> None:
        until(lambda: "non-default args" in log(host), timeout_s=300)
        with meminfo.open("r+b") as file:
            file.write(f"MemAvailable: {GIB // 1024:>12} kB\n".encode())

    emptying = threading.Thread(target=empty)
    emptying.start()
    with ServedModel(f"http://127.0.0.1:{PORT}") as model, pytest.raises(ContainerDiedError) as end:
        put_in_place(
            host,
            spec,
            crashes_dir=tmp_path / "crashes",
            wait=lambda found: wait_until_answering(host, found, model, deadline_s=600),
        )
    emptying.join()

    assert end.value.cause.name == "memory_floor"
    assert "exit code 86" in end.value.message
    assert fact(host) is None
