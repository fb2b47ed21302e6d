"""Somebody who waits on a server that counts no request as running: it is asked, then judged."""

import socket

import pytest
from sparkdeploy_vllm.guard.asking import Reply
from sparkdeploy_vllm.guard.listening import connected
from sparkdeploy_vllm.guard.stalling import Canary, StallWatch, Stillness, Waiters

from tests.unit.vllm_plugin.test_guard_stalls import Mute

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


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_kernel_tells_who_is_connected(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert connected(port) == frozenset()
        with socket.create_connection((address, port)) as client:
            (peer,) = connected(port)
            assert peer.endswith(b":%04X" % client.getsockname()[1])
