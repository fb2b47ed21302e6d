"""The real vLLM with an engine that hangs behind a green /health: noticed, told, started again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from sparkdeploy.server.client import ServedModel
from tests.engine.conftest import free_port, until
from tests.engine.vllm.twin_user import (
    TWIN_RECIPE,
    is_busy,
    twin_user,
    unique_name,
    wait_until_guarded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.host import DockerHost
    from tests.engine.program import Program

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1500),
    pytest.mark.runs("checkpoint", "diagnose", "down", "status", "up"),
]

PORT = free_port()
NAME = unique_name("hung")
STALL_S = 20
LATE_S = 10
LONG = {"prompt": "a b c", "max_tokens": 1000, "ignore_eos": True}
"""Some seconds of a twin's writing."""

SPIN = "/tmp/spin"
"""While this file is there, an engine with the mod below never leaves its next step."""
SPINNER = f"""
import os
from vllm.v1.sample.logits_processor import LogitsProcessor
class Spinner(LogitsProcessor):
    def __init__(self, *_): pass
    def is_argmax_invariant(self): return False
    def update_state(self, batch_update): pass
    def apply(self, logits):
        while os.path.exists({SPIN!r}): pass
        return logits
"""
INSTALL = f"""
target="$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/spinner.py"
cat >"$target" <<'END'{SPINNER}END
"""
SPINNING_RECIPE = {
    "schema": 1,
    "name": "spinning",
    "title": "An engine that can be made to spin in Python",
    "extends": TWIN_RECIPE,
    "mods": [{"run": INSTALL}],
    # vLLM takes no processors of others beside drafts.
    "serve": {"speculative": None, "extra_args": ["--logits-processors", "spinner:Spinner"]},
}


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Program:
    made = twin_user(tmp_path_factory.mktemp("hung-vllm"), port=PORT)
    (made.root / "config" / "recipes" / "spinning.yaml").write_text(json.dumps(SPINNING_RECIPE))
    return made


@pytest.fixture(params=[(TWIN_RECIPE, f"limits.stall_s={STALL_S}")])
def program(user: Program, request: pytest.FixtureRequest, host: DockerHost) -> Iterator[Program]:
    recipe, *settings = request.param
    words = [word for setting in settings for word in ("--set", setting)]
    done = user.run("up", recipe, "--name", NAME, "--yes", *words)
    assert done.returncode == 0, done.stderr
    assert ask(max_tokens=2).ok
    wait_until_guarded(host, NAME)
    yield user
    user.run("down", NAME)


def log(host: DockerHost) -> str:
    found = host.find_container(f"sparkdeploy-{NAME}")
    assert found is not None
    return b"".join(host.logs(found.container_id)).decode(errors="replace")


def engine_core(host: DockerHost) -> int:
    """Wait for the process that computes, and return it."""
    until(lambda: bool(engine_cores(host)))
    return engine_cores(host)[0]


def engine_cores(host: DockerHost) -> list[int]:
    """Find the processes that compute, by the name that vLLM gives them."""
    found = host.find_container(f"sparkdeploy-{NAME}")
    assert found is not None
    guard = str(host.inspect(found.container_id)["State"]["Pid"])
    cores = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has just ended.
            title = (folder / "cmdline").read_bytes()
            if title.startswith(b"VLLM::EngineCore") and guard in _ancestors(folder.name):
                cores.append(int(folder.name))
    return cores


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


@contextlib.contextmanager
def somebody_waits() -> Iterator[None]:
    asked = threading.Thread(target=ask_in_vain)
    asked.start()
    yield
    asked.join(timeout=60)


def ended(host: DockerHost, *, within_s: float) -> str:
    """Wait until a hang was noticed and vllm is started anew; return the log by then."""
    hung_s = time.monotonic()
    until(lambda: '"event": "stalled"' in log(host), timeout_s=within_s + 30)
    noticed_s = time.monotonic() - hung_s
    print(f"noticed after {noticed_s:.1f} s")
    assert noticed_s <= within_s
    until(lambda: '"event": "restart"' in log(host), timeout_s=60)
    return log(host)


def started_again(host: DockerHost, *, within_s: float) -> str:
    """Wait until a hang was noticed and the model answers again; return the log by then."""
    ended(host, within_s=within_s)
    until(is_healthy, timeout_s=300)
    assert ask(max_tokens=2).ok
    return log(host)


def test_an_engine_that_is_stopped_while_it_serves(program: Program, host: DockerHost) -> None:
    with somebody_waits():
        until(lambda: is_busy(PORT), timeout_s=10)
        os.kill(engine_core(host), signal.SIGSTOP)
        said = ended(host, within_s=STALL_S + LATE_S)
    assert "Fatal Python error: Aborted" in said
    assert "run_busy_loop" in said
    assert "stalled" in program.run("status").stdout


@pytest.mark.slow
@pytest.mark.usefixtures("program")
def test_an_engine_that_is_stopped_while_idle_is_asked_first(host: DockerHost) -> None:
    os.kill(engine_core(host), signal.SIGSTOP)
    with somebody_waits():
        said = started_again(host, within_s=2 * (STALL_S + LATE_S))
    assert "canary_unanswered_s" in said


@pytest.mark.slow
@pytest.mark.parametrize("program", [("spinning", f"limits.stall_s={STALL_S}")], indirect=True)
def test_an_engine_that_spins_in_python(program: Program, host: DockerHost) -> None:
    container = f"sparkdeploy-{NAME}"
    with somebody_waits():
        until(lambda: is_busy(PORT), timeout_s=10)
        subprocess.run(["docker", "exec", container, "touch", SPIN], check=True)
        until(lambda: '"event": "stalled"' in log(host), timeout_s=STALL_S + LATE_S)
        subprocess.run(["docker", "exec", container, "rm", SPIN], check=True)
        said = started_again(host, within_s=STALL_S + LATE_S)
    assert re.search(r'spinner.py", line \d+ in apply', said)
    assert "stalled" in program.run("status").stdout


HASTY_S = 6
"""A guard that waits no longer than this would end anything that looks like a hang."""
BUSY_S = 4 * HASTY_S
LONG_PROMPT = "a b c " * 4_500


def nobody_asks() -> None:
    time.sleep(BUSY_S)


def a_long_prompt_is_read() -> None:
    began_s = time.monotonic()
    while time.monotonic() - began_s < BUSY_S:
        assert ask(prompt=LONG_PROMPT, max_tokens=1).ok


def many_think_in_silence() -> None:
    """Nothing of an answer is sent before it is whole."""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(max_tokens=4_000), range(8)))
    assert all(answer.ok for answer in answers)


def a_client_reads_slowly() -> None:
    model = requests.get(f"http://127.0.0.1:{PORT}/v1/models", timeout=10).json()["data"][0]["id"]
    body = {**LONG, "model": model, "max_tokens": 4_000, "stream": True}
    url = f"http://127.0.0.1:{PORT}/v1/completions"
    with requests.post(url, json=body, stream=True, timeout=300) as answer:
        for _ in islice(answer.iter_content(64), BUSY_S):
            time.sleep(1)


def the_machine_sleeps() -> None:
    container = f"sparkdeploy-{NAME}"
    with somebody_waits():
        until(lambda: is_busy(PORT), timeout_s=10)
        subprocess.run(["docker", "pause", container], check=True)
        time.sleep(BUSY_S)
        subprocess.run(["docker", "unpause", container], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [(TWIN_RECIPE, f"limits.stall_s={HASTY_S}", "serve.max_model_len=32768")],
    indirect=True,
)
@pytest.mark.usefixtures("program")
def test_an_engine_that_works_or_rests_is_left_alone(host: DockerHost) -> None:
    lives = (
        *(nobody_asks, a_long_prompt_is_read, many_think_in_silence),
        *(a_client_reads_slowly, the_machine_sleeps),
    )
    for live in lives:
        live()
        assert '"event": "stalled"' not in log(host), live.__name__
    assert ask(max_tokens=2).ok
