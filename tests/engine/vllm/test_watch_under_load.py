"""`status --watch` beside a rehearsal under load: what it shows is what the server counts."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from sparkdeploy.server.tally import Tally, read_tally
from tests.engine.program import Program
from tests.engine.vllm.twin_user import unique_name

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("host"),
    pytest.mark.runs("rehearse", "status", "down"),
]
STREAMS = 3
LINES = 12
"""Seconds that are compared."""
OLDEST_S = 2.0
"""A line is of this second or the last one, and what it shows was asked for before."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("watched"))


@pytest.fixture(scope="module")
def served(program: Program) -> Iterator[dict[str, Any]]:
    name = unique_name("watched")
    report = program.answer("rehearse", "mtp-2", "--keep", "--name", name)
    yield report
    program.run("down", name)


def tally_of(url: str) -> Tally:
    with urlopen(f"{url}/metrics", timeout=60) as answer:
        found = read_tally(answer.read().decode())
    assert found is not None
    return found


def ask_until(url: str, is_over: Callable[[], bool]) -> None:
    with urlopen(f"{url}/v1/models", timeout=60) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 48}
    while not is_over():
        data = json.dumps(body).encode()
        request = Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
        urlopen(request, timeout=300).close()


def crowding() -> float:
    """How much longer everything takes here now."""
    return max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)


def first_lines(process: subprocess.Popen[str], url: str) -> Iterator[tuple[Any, Tally, Tally]]:
    """Each line, what the server said two seconds before it, and what it says right after it."""
    said: list[tuple[float, Tally]] = []
    is_over = threading.Event()

    def remember() -> None:
        while not is_over.wait(0.2):
            said.append((time.monotonic(), tally_of(url)))

    thread = threading.Thread(target=remember)
    thread.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            at_s, after = time.monotonic(), tally_of(url)
            before = [tally for then_s, tally in said if then_s < at_s - OLDEST_S * crowding()]
            if before:
                yield json.loads(line), before[-1], after
    finally:
        is_over.set()
        thread.join()


def test_each_line_is_what_the_server_counted_then(
    program: Program, served: dict[str, Any]
) -> None:
    url, name = served["base_url"], served["deployment"]
    is_over = threading.Event()
    process = program.start("status", "--watch", name, "--json")
    rows: list[dict[str, Any]] = []
    counted: list[Tally] = []
    with ThreadPoolExecutor(STREAMS) as pool:
        for _ in range(STREAMS):
            pool.submit(ask_until, url, is_over.is_set)
        try:
            for told, before, after in first_lines(process, url):
                row = told["deployments"][0]
                if row["tokens_per_s"] is None:
                    continue  # its first second
                assert before.generated_tokens is not None
                assert after.generated_tokens is not None
                assert before.generated_tokens <= row["generated_tokens"] <= after.generated_tokens
                assert 0 <= row["running"] <= STREAMS
                rows.append(row)
                counted.append(after)
                if len(rows) == LINES:
                    break
        finally:
            is_over.set()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 0
    grown = (counted[-1].generated_tokens or 0) - (counted[0].generated_tokens or 0)
    rates = [row["tokens_per_s"] for row in rows[1:]]
    mean = sum(rates) / len(rates)
    print(f"{mean:.1f} tokens/s shown, {grown} tokens counted over {LINES - 1} s")
    assert mean == pytest.approx(grown / (LINES - 1), rel=0.35)
    lately = counted[-1].gap.since(counted[0].gap)
    p50_s = lately.quantile(0.5)
    assert p50_s is not None
    assert rows[-1]["gap"]["p50_s"] == pytest.approx(p50_s, rel=0.5)
    assert len(rows[-1]["accepted"]) == 2
    assert rows[-1]["accepted"][0] > rows[-1]["accepted"][1] > 0
