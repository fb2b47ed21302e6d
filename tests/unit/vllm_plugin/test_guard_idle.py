"""A server that nobody asks stops itself, and one that somebody asks never does."""

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkdeploy_vllm.guard.stalling import LONGEST_STEP_S, EngineWork, Idleness
from sparkdeploy_vllm.guard.supervision import Orders, Supervision

from tests.unit.vllm_plugin.guarded import Start, events, finish

LOOK_S = 4.0


def work(running: float = 0.0, waiting: float = 0.0, tokens: int = 5) -> EngineWork:
    moving = ((b"generation_tokens_total", b"%d" % tokens),)
    return EngineWork(running, has_worked=tokens > 0, moving=moving, waiting=waiting)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(lambda _: work(running=1.0), id="a long silent think"),
        pytest.param(lambda n: work(waiting=float(n % 20 == 0)), id="one waits now and then"),
        pytest.param(lambda n: work(tokens=5 + n // 20), id="a short request between two looks"),
    ],
)
def test_somebody_asks(seen: Callable[[int], EngineWork]) -> None:
    idleness = Idleness()
    assert max(idleness.see(n * LOOK_S, {"0": seen(n)}) for n in range(1000)) < 20 * LOOK_S


def test_a_machine_that_slept_was_not_idle_meanwhile() -> None:
    idleness = Idleness()
    idleness.see(0.0, {"0": work()})
    assert idleness.see(36_000.0, {"0": work()}) == LONGEST_STEP_S


def test_of_what_is_written_one_token_may_be_the_guards_own() -> None:
    idleness = Idleness()
    idleness.see(0.0, {"0": work(tokens=5)})
    assert idleness.see(LOOK_S, {"0": work(tokens=6)}, own_tokens=1) == LOOK_S
    assert idleness.see(2 * LOOK_S, {"0": work(tokens=8)}, own_tokens=1) == 0.0


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 2), st.floats(0.1, 30.0)),
        min_size=2,
        max_size=60,
    )
)
def test_it_is_never_idle_for_longer_than_since_the_last_request(
    steps: list[tuple[int, int, int, float]],
) -> None:
    idleness, now_s, tokens, asked_s = Idleness(), 0.0, 1, 0.0
    for running, waiting, more, passed_s in steps:
        now_s, tokens = now_s + passed_s, tokens + more
        if running or waiting or more:
            asked_s = now_s
        idle_s = idleness.see(now_s, {"0": work(float(running), float(waiting), tokens)})
        assert idle_s <= now_s - asked_s + 1e-6


@pytest.mark.parametrize("is_asking", [True, False])
def test_the_guard_overlooks_its_own_question_alone(is_asking: bool) -> None:
    class Told:
        overlooked = 0

        def overlook(self, _now_s: float) -> None:
            self.overlooked += 1

        def tick(self, _now_s: float) -> None: ...

    told, orders = Told(), Orders((), {}, None, grace_s=0.0, max_restarts=0)
    guard: Any = Supervision(orders, memory=None, kernel_log=None, probe=None)  # type: ignore[arg-type]
    guard._stop_when_idle(told, SimpleNamespace(is_asking=is_asking))
    guard._stop_when_idle(told, None)
    assert told.overlooked == is_asking


SERVER = """
import http.server, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'vllm:num_requests_running{{engine="0"}} %d\\n' % {running}
        self.send_response(200); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", {port}), Handler)
server.timeout = 0.1
begun = time.monotonic()
while time.monotonic() - begun < 14: server.handle_request()
sys.exit(3)
"""


@pytest.mark.outside
@pytest.mark.parametrize(
    ("running", "code", "ended"),
    [
        pytest.param(0, 0, 88, id="idle"),
        pytest.param(0, 9, 88, id="idle, and it dies of the stop", marks=pytest.mark.slow),
        pytest.param(1, 0, 3, id="busy", marks=pytest.mark.slow),
    ],
)
def test_an_idle_server_is_told_to_stop_and_not_started_again(
    start: Start, running: int, code: int, ended: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    script = SERVER.format(running=running, code=code, port=port)
    url = f"http://127.0.0.1:{port}/health"
    restarts = "3" if ended == 88 else "0"
    guard = start(script, "--max-restarts", restarts, "--health-url", url, "--idle-stop-s", "3")
    got, _, stderr = finish(guard)
    assert got == ended, stderr
    told = [event for event in events(stderr) if event["event"] == "idle"]
    assert [event["exit_code"] for event in told] == [88] * (ended == 88)
    assert "restart" not in stderr
