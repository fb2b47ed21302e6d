"""The gateway before the real vLLM: three tiny models, of which two fit at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from sparkdeploy.node.facts import parse_meminfo
from tests.engine.conftest import free_port, until
from tests.engine.program import Program
from tests.engine.vllm.twin_user import TWIN_RECIPE, is_busy, twin_user, unique_name

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.runs("down", "gateway", "status", "up"),
]

NAMES = tuple(unique_name(it) for it in ("first", "second", "third"))
PORT = free_port()
CHAT = "/v1/chat/completions"
PATIENCE_S = 900
CLIENTS, ASK_FOR_S = 20, float(os.environ.get("ASK_FOR_S", "300"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    made = twin_user(tmp_path_factory.mktemp("gateway"), port=free_port())
    # Each is planned with 4 GiB: two of them leave so much free, three do not.
    available_gib = parse_meminfo(Path("/proc/meminfo").read_text())["MemAvailable"] / 2**30
    own = [f"limits.memory_floor_gib={available_gib - 10.5:.2f}"]
    models = [{"name": it, "recipe": TWIN_RECIPE, "set": own} for it in NAMES]
    content = {"schema": 1, "port": PORT, "smallest_stay_s": 20, "models": models}
    (made.root / "config" / "recipes" / "home.yaml").write_text(json.dumps(content))
    yield made
    for name in NAMES:
        made.run("down", name, "--yes")


@contextlib.contextmanager
def serving(program: Program) -> Iterator[subprocess.Popen[str]]:
    stack = str(program.root / "config" / "recipes" / "home.yaml")
    with program.start("gateway", stack) as gateway:
        try:
            assert gateway.stdout is not None
            assert any("listens" in line for line in gateway.stdout)
            yield gateway
        finally:
            gateway.kill()


def ask_in_turns(client: httpx2.Client) -> list[tuple[str, str]]:
    """Let many clients ask for all models in turns; return each name with who answered."""
    ends_s = time.monotonic() + ASK_FOR_S

    def ask(number: int) -> list[tuple[str, str]]:
        answered: list[tuple[str, str]] = []
        while time.monotonic() < ends_s or not answered:
            name = NAMES[(number + len(answered)) % len(NAMES)]
            body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
            answer = client.post(CHAT, json={**body, "max_tokens": 4})
            answered.append((name, answer.json().get("model", answer.text)))
        return answered

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [pair for pairs in pool.map(ask, range(CLIENTS)) for pair in pairs]


def test_clients_in_turns_cancels_and_kills(program: Program) -> None:
    done = program.run("up", str(program.root / "config" / "recipes" / "home.yaml"), "--yes")
    assert done.returncode == 0, done.stderr
    limits = httpx2.Limits(max_connections=None)
    url = f"http://127.0.0.1:{PORT}"
    with httpx2.Client(base_url=url, timeout=PATIENCE_S, trust_env=False, limits=limits) as client:
        with serving(program) as gateway:
            answered = ask_in_turns(client)
            assert [pair for pair in answered if pair[0] != pair[1]] == []
            lines = client.get("/metrics").text.splitlines()
            print(len(answered), [it for it in lines if it.startswith("sparkdeploy_gateway_sw")])
            models = client.get("/v1/models").json()["data"]
            ready = next(it["id"] for it in models if it["state"] == "ready")
            (row,) = program.answer("status", ready)
            body = {"model": ready, "messages": [{"role": "user", "content": "Tell me all"}]}
            long = {**body, "stream": True, "max_tokens": 900, "ignore_eos": True}
            with client.stream("POST", CHAT, json=long) as answer:
                assert next(answer.iter_lines()).startswith("data:")
            until(lambda: not is_busy(row["port"]))
            gateway.send_signal(signal.SIGKILL)
        with serving(program) as gateway:
            assert client.post(CHAT, json={**body, "max_tokens": 1}).json()["model"] == ready
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait() == 0
