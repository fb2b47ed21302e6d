"""The real vLLM with an engine that hangs behind a green /health: noticed, told, started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest
import requests

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import free_port, until
from tests.engine.program import Program
from tests.engine.vllm.hang import LATE_S, LONG, Served
from tests.engine.vllm.twin_user import (
    TWIN_RECIPE,
    is_busy,
    twin_user,
    unique_name,
    wait_until_guarded,
)

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1500),
    pytest.mark.runs("checkpoint", "diagnose", "down", "status", "up"),
]

PORT = free_port()
NAME = unique_name("hung")
STALL_S = 20

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
    assert Served(host, NAME, PORT).ask(max_tokens=2).ok
    wait_until_guarded(host, NAME)
    yield user
    user.run("down", "--yes", NAME)


@pytest.fixture
def served(program: Program, host: DockerHost) -> Served:
    return Served(host, NAME, PORT)


@pytest.mark.slow
def test_an_engine_that_is_stopped_while_idle_is_asked_first(served: Served) -> None:
    os.kill(served.engine_core(), signal.SIGSTOP)
    with served.somebody_waits():
        said = served.started_again(within_s=2 * (STALL_S + LATE_S))
    assert "canary_unanswered_s" in said


@pytest.mark.slow
@pytest.mark.parametrize("program", [("spinning", f"limits.stall_s={STALL_S}")], indirect=True)
def test_an_engine_that_spins_in_python(program: Program, served: Served) -> None:
    container = f"sparkdeploy-{NAME}"
    with served.somebody_waits():
        until(lambda: is_busy(PORT), timeout_s=10)
        subprocess.run(["docker", "exec", container, "touch", SPIN], check=True)
        until(lambda: '"event": "stalled"' in served.log(), timeout_s=STALL_S + LATE_S)
        subprocess.run(["docker", "exec", container, "rm", SPIN], check=True)
        said = served.started_again(within_s=STALL_S + LATE_S)
    assert re.search(r'spinner.py", line \d+ in apply', said)
    assert "stalled" in program.run("status").stdout


HASTY_S = 6
"""A guard that waits no longer than this would end anything that looks like a hang."""
BUSY_S = 4 * HASTY_S
LONG_PROMPT = "a b c " * 4_500


def nobody_asks(_: Served) -> None:
    time.sleep(BUSY_S)


def a_long_prompt_is_read(served: Served) -> None:
    began_s = time.monotonic()
    while time.monotonic() - began_s < BUSY_S:
        assert served.ask(prompt=LONG_PROMPT, max_tokens=1).ok


def many_think_in_silence(served: Served) -> None:
    """Nothing of an answer is sent before it is whole."""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: served.ask(max_tokens=4_000), range(8)))
    assert all(answer.ok for answer in answers)


def a_client_reads_slowly(_: Served) -> None:
    model = requests.get(f"http://127.0.0.1:{PORT}/v1/models", timeout=10).json()["data"][0]["id"]
    body = {**LONG, "model": model, "max_tokens": 4_000, "stream": True}
    url = f"http://127.0.0.1:{PORT}/v1/completions"
    with requests.post(url, json=body, stream=True, timeout=300) as answer:
        for _ in islice(answer.iter_content(64), BUSY_S):
            time.sleep(1)


def the_machine_sleeps(served: Served) -> None:
    container = f"sparkdeploy-{NAME}"
    with served.somebody_waits():
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
def test_an_engine_that_works_or_rests_is_left_alone(served: Served) -> None:
    lives = (
        *(nobody_asks, a_long_prompt_is_read, many_think_in_silence),
        *(a_client_reads_slowly, the_machine_sleeps),
    )
    for live in lives:
        live(served)
        assert '"event": "stalled"' not in served.log(), live.__name__
    assert served.ask(max_tokens=2).ok
