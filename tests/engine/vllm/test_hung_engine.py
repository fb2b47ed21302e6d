"""The real vLLM with an engine that hangs behind a green /health: noticed, told, started again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from sparkdeploy.server.client import ServedModel
from tests.engine.conftest import free_port, until
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.host import DockerHost
    from tests.engine.program import Program

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.runs("checkpoint", "diagnose", "down", "status", "up"),
]

PORT = free_port()
NAME = unique_name("hung")
STALL_S = 20
LATE_S = 10
LONG = {"prompt": "a b c", "max_tokens": 1500, "ignore_eos": True}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    made = twin_user(tmp_path_factory.mktemp("hung-vllm"), port=PORT)
    done = made.run(
        *("up", TWIN_RECIPE, "--name", NAME, "--yes", "--set", f"limits.stall_s={STALL_S}")
    )
    assert done.returncode == 0, done.stderr
    yield made
    made.run("down", NAME)


def log(host: DockerHost) -> str:
    found = host.find_container(f"sparkdeploy-{NAME}")
    assert found is not None
    return b"".join(host.logs(found.container_id)).decode(errors="replace")


def engine_core(host: DockerHost) -> int:
    """The process that computes, by the name that vLLM gives it."""
    found = host.find_container(f"sparkdeploy-{NAME}")
    assert found is not None
    guard = str(host.inspect(found.container_id)["State"]["Pid"])
    for folder in Path("/proc").glob("[0-9]*"):
        title = (folder / "cmdline").read_bytes() if (folder / "cmdline").exists() else b""
        if title.startswith(b"VLLM::EngineCore") and guard in _ancestors(folder.name):
            return int(folder.name)
    raise AssertionError("no engine")


def _ancestors(pid: str) -> Iterator[str]:
    while pid != "0":
        pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        yield pid


def is_healthy() -> bool:
    with ServedModel(f"http://127.0.0.1:{PORT}") as model:
        return model.is_healthy()


def ask(**more: object) -> requests.Response:
    model = requests.get(f"http://127.0.0.1:{PORT}/v1/models", timeout=10).json()["data"][0]["id"]
    body = {**LONG, "model": model, **more}
    return requests.post(f"http://127.0.0.1:{PORT}/v1/completions", json=body, timeout=300)


def ask_in_vain() -> None:
    with contextlib.suppress(requests.RequestException):
        ask()


def test_an_engine_that_hangs_while_it_serves_is_started_again(
    program: Program, host: DockerHost
) -> None:
    assert ask(max_tokens=2).ok
    time.sleep(5)  # the guard asks for health every two seconds
    asked = threading.Thread(target=ask_in_vain)
    asked.start()
    time.sleep(2)
    os.kill(engine_core(host), signal.SIGSTOP)
    hung_s = time.monotonic()

    until(lambda: '"event": "stalled"' in log(host), timeout_s=3 * STALL_S)

    noticed_s = time.monotonic() - hung_s
    assert noticed_s <= STALL_S + LATE_S
    until(lambda: '"event": "restart"' in log(host), timeout_s=60)
    asked.join(timeout=60)
    until(is_healthy, timeout_s=300)
    assert ask(max_tokens=2).ok
    said = log(host)
    assert "Fatal Python error: Aborted" in said
    assert "run_busy_loop" in said
    assert "stalled" in program.run("status").stdout
