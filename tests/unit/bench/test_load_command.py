"""`bench load` as a user runs it, against a server that answers at once."""

from __future__ import annotations

import os
import resource
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.bench.loads import QUICK, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.vllm_server import FakeEngine
    from tests.unit.program import Done

pytestmark = pytest.mark.outside


def test_a_load_is_measured_judged_and_kept(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    done = bench("load", "--url", engine.url, *QUICK, "--slo", "e2e=1min", "--seed", "3")

    assert done.returncode == 0, done.stderr
    assert "suite load: open loop" in done.stdout
    assert "arrivals poisson, seed 3" in done.stdout
    suite = suite_of(tmp_path)
    assert suite["asking"] == "open loop"
    (cell,) = suite["cells"]
    assert cell["concurrency"] == 0
    assert (cell["load"]["requests"], cell["load"]["held"]) == (20, 20)
    assert cell["load"]["limits_s"] == {"e2e": 60.0}
    assert len(cell["samples"]) == 20
    assert cell["server"]["generation_tokens"] == sum(
        sample["completion_tokens"] for sample in cell["samples"]
    )


def test_several_rates_say_the_highest_that_held(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    done = bench(
        *("load", "--url", engine.url, "--rate", "50,25", "--requests", "10", "--ramp", "0"),
        *("--slo", "e2e=1min", "--arrivals", "constant"),
    )

    assert "highest rate with 95% of requests within the limits: 50/s (10 of 10)" in done.stdout
    suite = suite_of(tmp_path)
    assert [cell["load"]["rate_per_s"] for cell in suite["cells"]] == [25.0, 50.0]
    assert suite["sustained"]["rate_per_s"] == 50.0
    assert suite["sustained"]["fails_at_per_s"] is None


def test_failed_requests_hold_nothing_and_are_told(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    engine.refuse = lambda body: "too long" if body["max_tokens"] == 1024 else None

    done = bench("load", "--url", engine.url, *QUICK, "--slo", "e2e=1min")

    assert "requests failed and are in no figure" in done.stdout
    load = suite_of(tmp_path)["cells"][0]["load"]
    # Of eight prompts in turn the third asks for 1024 tokens.
    assert (load["failures"], load["held"], load["requests"]) == (3, 17, 20)


def test_a_load_of_which_most_requests_failed_is_a_failure(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    engine.refuse = lambda _body: "busy" if len(engine.asked) > 4 else None
    done = bench("load", "--url", engine.url, *QUICK)
    assert done.returncode == 8
    assert "of 20 requests failed" in done.stderr
    assert suite_of(tmp_path)["cells"][0]["load"]["failures"] > 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "auto"), "--slo is missing"),
        (("--slo", "ttft=2"), "not a duration"),
        (("--rate", "fast"), "not a rate"),
        (("--seed", "-1"), "--seed"),
        (("--duration", "60"), "not a duration"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything(
    bench: Callable[..., Done], engine: FakeEngine, words: tuple[str, ...], said: str
) -> None:
    done = bench("load", "--url", engine.url, *words)

    assert done.returncode == 2
    assert said in done.stderr
    assert engine.asked == []


def test_an_interrupted_load_keeps_the_rates_before(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    def interrupt(_body: dict[str, Any]) -> None:
        if len(engine.asked) == 14:  # what it counts, the first try, ten of the first rate
            os.kill(os.getpid(), signal.SIGINT)

    engine.before = interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = bench(
            *("load", "--url", engine.url, "--rate", "50,60", "--requests", "10", "--ramp", "0")
        )
    finally:
        signal.signal(signal.SIGINT, before)

    assert done.returncode == 130, done.stderr
    suite = suite_of(tmp_path)
    assert suite["is_complete"] is False
    assert suite["notes"][0] == "interrupted"  # a busy machine adds that it was late
    assert [cell["load"]["rate_per_s"] for cell in suite["cells"]] == [50.0]


def test_a_load_that_outgrows_the_open_files_is_given_more(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    gate = threading.Event()
    waiting: list[int] = []

    def hold(body: dict[str, Any]) -> None:
        if body["max_tokens"] > 2 and len(engine.asked) > 1:
            waiting.append(1)
            if len(waiting) >= 60:
                gate.set()
            gate.wait(20)

    engine.before = hold
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends of each connection are this process's.
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 40, hard))
    try:
        done = bench(
            *("load", "--url", engine.url, "--rate", "200", "--requests", "60", "--ramp", "0")
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert done.returncode == 0, done.stderr
    load = suite_of(tmp_path)["cells"][0]["load"]
    assert (load["failures"], load["most_in_flight"]) == (0, 60)


def test_a_server_that_takes_no_such_request_is_told_before_the_load(
    bench: Callable[..., Done], engine: FakeEngine
) -> None:
    engine.refuse = lambda body: "no text today" if body["max_tokens"] > 2 else None

    done = bench("load", "--url", engine.url, *QUICK)

    assert done.returncode == 8
    assert "no text today" in done.stderr
