"""A hung engine is told from a busy one, also by who waits for it, and is restarted."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sparkdeploy_vllm.guard.asking import Reply
from sparkdeploy_vllm.guard.listening import connected
from sparkdeploy_vllm.guard.stalling import (
    Canary,
    EngineWork,
    StallWatch,
    Stillness,
    Waiters,
    read_counters,
    stall_watch,
)
from sparkdeploy_vllm.guard.supervision import _orders, _parser

from tests.unit.vllm_plugin.guarded import Start, events, finish, wait_for

LOOK_S = 4.0
PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1200.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 0.0
vllm:generation_tokens_total{engine="0",model_name="m"} 5.0
vllm:generation_tokens_total{engine="1",model_name="m"} 0.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 0.0
"""


def counters(running: float = 1.0, tokens: int = 5, usage: str = "0.5") -> EngineWork:
    moving = ((b"generation_tokens_total", b"%d" % tokens), (b"kv", usage.encode()))
    return EngineWork(running, has_worked=tokens > 0, moving=moving)


def test_the_counters_of_each_engine_are_read_by_name() -> None:
    engines = read_counters(PAGE)
    assert {name: (it.running, it.has_worked) for name, it in engines.items()} == {
        "0": (2.0, True),
        "1": (0.0, False),
    }
    assert engines["0"].as_facts() == {
        "running": 2.0,
        "kv_cache_usage_perc": "0.25",
        "prompt_tokens_total": "1200.0",
        "generation_tokens_total": "5.0",
    }


def test_a_page_without_vllm_s_counters_has_no_engine() -> None:
    assert read_counters(b"") == read_counters(b"process_cpu_seconds_total 4.0\n") == {}
    assert read_counters(b'vllm:num_requests_running{engine="0"} lots\n')["0"].running == 0


def test_one_hung_engine_of_two_is_named() -> None:
    stillness = Stillness(20.0)
    said = [
        # The second compiles kernels for its first request.
        stillness.see(
            number * LOOK_S,
            {"0": counters(tokens=number + 1), "2": counters(tokens=0), "1": counters()},
        )
        for number in range(7)
    ]
    assert said == [None] * 5 + ["1"] * 2


class Mute:
    """A question that is never answered, or at the third tick."""

    answer_timeout_s = 10.0

    def __init__(self, answer_at_s: float = float("inf"), gone_at_s: float = 10.0) -> None:
        self.answer_at_s, self.gone_at_s, self.is_waiting = answer_at_s, gone_at_s, False
        self.asked = 0
        self.begun_s = 0.0

    def tick(self, now_s: float) -> Reply | None:
        if not self.is_waiting:
            self.asked, self.is_waiting, self.begun_s = self.asked + 1, True, now_s
            return None
        if now_s - self.begun_s >= self.answer_at_s:
            self.is_waiting = False
            return Reply(b"200", b"{}")
        self.is_waiting = now_s - self.begun_s < self.gone_at_s
        return None


def canary_says(ask: Mute, until_s: int, idle: Callable[[int], bool] = lambda _: True) -> list[int]:
    canary = Canary(ask, after_idle_s=60.0)  # type: ignore[arg-type]
    return [now for now in range(until_s) if canary.tick(float(now), is_idle=idle(now))]


def test_an_idle_server_that_answers_no_canary_hangs() -> None:
    ask = Mute()
    assert canary_says(ask, 75) == [70]
    assert ask.asked == 1


def test_a_canary_that_sings_or_finds_no_server_says_nothing() -> None:
    assert canary_says(Mute(answer_at_s=2.0), 500) == []
    assert canary_says(Mute(gone_at_s=1.0), 500) == []


def test_no_canary_beside_real_requests() -> None:
    ask = Mute()
    assert canary_says(ask, 500, idle=lambda now: now % 50 != 0) == []
    assert ask.asked == 0


def test_the_guards_options_reach_its_watches() -> None:
    words = ["--health-url", "http://127.0.0.1:8000/health", "--stall-s", "120"]
    words += ["--canary-model", "m", "--canary-s", "600", "--idle-stop-s", "900", "--", "vllm"]
    env = {"VLLM_API_KEY": "secret"}
    orders = _orders(_parser().parse_args(words), env)
    assert env["PYTHONFAULTHANDLER"] == "1"
    assert orders.idle is not None
    assert orders.stalls is not None
    idle, stalls = orders.idle(), orders.stalls()
    canary = stalls.canary
    assert canary is not None
    for asked in (idle.metrics, stalls.metrics, canary.ask):
        assert b"\r\nAuthorization: Bearer secret\r\n" in asked.request
    assert (idle.stop_after_s, stalls.stillness.stall_s) == (900, 120)
    assert (canary.after_idle_s, canary.ask.answer_timeout_s) == (600, 120)
    assert stall_watch("http://127.0.0.1:8000", "", 120.0, canary_model="").canary is None
    assert canary.ask.request.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert canary.ask.request.endswith(b'{"model": "m", "prompt": "a", "max_tokens": 1}')


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


HANGING_SERVER = """
import http.server, os, signal, subprocess, sys, threading, time

ENGINE = '''
import time
def forward():
    while True: time.sleep(0.001)
print("engine up", flush=True)
forward()
'''
with open({starts!r}, "a") as file: file.write("x")
engine = subprocess.Popen([sys.executable, "-c", ENGINE])
begun = time.monotonic()
if {stopped!r}: os.kill(engine.pid, signal.SIGSTOP)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        # The first start hangs after two seconds, the second one works.
        tokens = int(min(time.monotonic() - begun, 2) * 10) + 1
        if open({starts!r}).read() != "x": tokens = int((time.monotonic() - begun) * 10) + 1
        body = b'vllm:num_requests_running{{engine="0"}} 1.0\\n'
        body += b'vllm:generation_tokens_total{{engine="0"}} %d\\n' % tokens
        self.send_response(200); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", {port}), Handler)
server.serve_forever()
"""


@pytest.mark.outside
@pytest.mark.parametrize(
    "stopped",
    [pytest.param(False, id="spinning"), pytest.param(True, id="stopped", marks=pytest.mark.slow)],
)
def test_a_hung_engine_s_stacks_are_written_and_it_is_started_again(
    start: Start, tmp_path: Path, free_port: int, stopped: bool
) -> None:
    starts = tmp_path / "starts"
    script = HANGING_SERVER.format(starts=str(starts), port=free_port, stopped=stopped)
    url = f"http://127.0.0.1:{free_port}/health"
    guard = start(script, "--max-restarts", "3", "--health-url", url, "--stall-s", "3")
    assert guard.stderr is not None
    said = ""
    while '"restart"' not in said and (line := guard.stderr.readline()):
        said += line
    wait_for(lambda: starts.read_text() == "xx")
    guard.send_signal(signal.SIGTERM)
    code, _, rest = finish(guard)
    assert code == 143, rest
    told = {event["event"]: event for event in events(said)}
    assert told["stalled"]["engine"] == "0"
    assert told["stalled"]["still_s"] >= 3
    assert told["restart"]["exit_code"] == 87
    # The engine's own stack, with the function that it hung in, before its parent's.
    frames = [line.strip() for line in said.splitlines()]
    where = '  File "<string>", line 4 in forward'.strip()
    if not stopped:
        assert where in frames
        assert frames.index(where) < next(n for n, it in enumerate(frames) if "serve_forever" in it)
    else:
        states = [event["state"] for event in events(said) if event["event"] == "stacks_follow"]
        assert "T" in states
    assert list(tmp_path.glob("core*")) == []


@pytest.mark.outside
def test_without_health_there_is_no_watch_for_hangs(start: Start) -> None:
    script = "import os; print(os.environ.get('PYTHONFAULTHANDLER'))"
    _, stdout, _ = finish(start(script, "--stall-s", "3"))
    assert stdout.strip() == "None"


STALL_S = 60.0
IDLE = Reply(b"200", b"vllm:num_requests_running 0\nvllm:generation_tokens_total 5\n")
PEER = b"0100007F:C5A2"


class Page:
    """A server that answers each question for its counters at once."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def tick(self, _now_s: float) -> Reply:
        return self.reply


def watch(ask: Mute, peers: frozenset[bytes], reply: Reply = IDLE) -> StallWatch:
    waiters = Waiters(lambda: peers)
    return StallWatch(Page(reply), Stillness(STALL_S), Canary(ask), waiters)  # type: ignore[arg-type]


def said_by(watched: StallWatch, until_s: int = 600) -> list[tuple[int, dict[str, object]]]:
    return [(now, told) for now in range(until_s) if (told := watched.tick(float(now)))]


def test_a_client_that_waits_on_an_idle_engine_that_answers_nothing_is_a_hang() -> None:
    ask = Mute()
    (at_s, told), *_ = said_by(watch(ask, frozenset({PEER})))
    assert at_s == STALL_S + ask.answer_timeout_s
    assert told == {"canary_unanswered_s": ask.answer_timeout_s, "waited_s": STALL_S}


def test_a_client_that_only_holds_a_connection_open_is_asked_about_once() -> None:
    ask = Mute(answer_at_s=2.0)
    assert said_by(watch(ask, frozenset({PEER}))) == []
    assert ask.asked == 1


def test_a_canary_behind_requests_that_move_says_nothing() -> None:
    ask = Mute()
    watched = watch(ask, frozenset({PEER}))
    assert said_by(watched, int(STALL_S) + 2) == []
    assert ask.asked == 1
    page: Any = watched.metrics
    for now in range(int(STALL_S) + 2, 600):
        tokens = b"vllm:num_requests_running 1\nvllm:generation_tokens_total %d\n" % now
        page.reply = Reply(b"200", tokens)
        assert watched.tick(float(now)) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_kernel_tells_who_is_connected(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert connected(port) == frozenset()
        with socket.create_connection((address, port)) as client:
            (peer,) = connected(port)
            assert peer.endswith(b":%04X" % client.getsockname()[1])
