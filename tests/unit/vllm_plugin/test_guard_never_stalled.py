"""Half an hour of a sound server in all that looks like a hang, told by a clock of its own.

The watch is the guard's; the server, its clients and the time are played. Nothing of it may ever
be called hung, and the same server that stops working must be.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sparkdeploy_vllm.guard.asking import Reply
from sparkdeploy_vllm.guard.stalling import Canary, StallWatch, Stillness, Waiters

STALL_S = 120.0
HALF_AN_HOUR_S = 1800.0
TRIES = 15


@dataclass
class Server:
    """What a sound server counts, and who is connected to it."""

    chance: random.Random
    running: int = 0
    tokens: int = 1
    cache: float = 0.0
    peers: frozenset[bytes] = frozenset()
    is_hung: bool = False

    def page(self) -> bytes:
        return (
            b'vllm:num_requests_running{engine="0"} %d\n'
            b'vllm:generation_tokens_total{engine="0"} %d\n'
            b'vllm:kv_cache_usage_perc{engine="0"} %.6f\n' % (self.running, self.tokens, self.cache)
        )


@dataclass
class Asking:
    """A question to that server, with the limits of the guard's own."""

    answers: Callable[[], bytes | None]
    takes_s: Callable[[], float]
    answer_timeout_s: float = 5.0
    every_s: float = 4.0
    _asked_s: float | None = None
    _due_s: float = 0.0
    _last_s: float = float("-inf")

    @property
    def is_waiting(self) -> bool:
        return self._asked_s is not None

    def tick(self, now_s: float) -> Reply | None:
        if self._asked_s is None:
            if now_s - self._last_s >= self.every_s:
                self._asked_s = self._last_s = now_s
                self._due_s = now_s + self.takes_s()
            return None
        if now_s - self._asked_s > self.answer_timeout_s:
            self._asked_s = None
            return None
        body = self.answers() if now_s >= self._due_s else None
        if body is None:
            return None
        self._asked_s = None
        return Reply(b"200", body)


@dataclass
class Clock:
    """Goes on by the guard's step; a pause of everything is a jump."""

    now_s: float = 1000.0


Life = Callable[[Server, float, Clock], None]


def watch_over(server: Server) -> StallWatch:
    metrics = Asking(server.page, lambda: server.chance.uniform(0.0, 2.0))
    token = Asking(
        lambda: None if server.is_hung else b"{}",
        lambda: server.chance.uniform(0.1, 60.0),
        answer_timeout_s=STALL_S,
        every_s=0.0,
    )
    waiters = Waiters(lambda: server.peers)
    canary = Canary(token, server.chance.choice([600.0, float("inf")]))  # type: ignore[arg-type]
    return StallWatch(metrics, Stillness(STALL_S), canary, waiters)  # type: ignore[arg-type]


def verdicts(seed: int, life: Life, until_s: float = HALF_AN_HOUR_S) -> list[dict[str, object]]:
    """Everything that the guard says of half an hour of that life."""
    chance = random.Random(seed)
    server, clock = Server(chance), Clock()
    watch, lived_s, said = watch_over(server), 0.0, []
    while lived_s < until_s:
        step_s = chance.uniform(0.05, 1.0)
        lived_s += step_s
        clock.now_s += step_s
        life(server, step_s, clock)
        if (told := watch.tick(clock.now_s)) is not None:
            said.append(told)
    return said


def long_prefill(server: Server, step_s: float, _clock: Clock) -> None:
    """Ten minutes in which only the cache fills."""
    server.running, server.peers = 1, frozenset({b"reader"})
    server.cache = (server.cache + step_s / 600) % 1


def silent_think(server: Server, step_s: float, _clock: Clock) -> None:
    """A token now and then, of which the client sees nothing; less than every minute."""
    server.running, server.peers = 1, frozenset({b"patient"})
    server.tokens += server.chance.random() < step_s / 10


def idle(server: Server, _step_s: float, _clock: Clock) -> None:
    """Nobody asks; some hold their connections open."""
    server.running = 0
    if server.chance.random() < 0.001:
        peers = [b"dashboard", b"browser", b"bot"]
        server.peers = frozenset(server.chance.sample(peers, server.chance.randint(0, 3)))


def slow_readers(server: Server, step_s: float, _clock: Clock) -> None:
    """Answers that are long written, and clients that read a byte a second."""
    if server.chance.random() < step_s / 300:
        server.peers = frozenset(
            b"slow-%d" % number for number in range(server.chance.randint(0, 50))
        )
        server.running, server.tokens = 1, server.tokens + 500
    elif server.chance.random() < step_s / 5:
        server.running = 0


def paused(server: Server, step_s: float, clock: Clock) -> None:
    """All of the above, and now and then everything stands still for up to ten hours."""
    server.chance.choice([long_prefill, idle])(server, step_s, clock)
    if server.chance.random() < step_s / 200:
        clock.now_s += server.chance.uniform(10.0, 36_000.0)


@pytest.mark.parametrize("life", [long_prefill, silent_think, idle, slow_readers, paused])
def test_no_sound_server_is_ever_called_hung(life: Life) -> None:
    called = {seed: said for seed in range(TRIES) if (said := verdicts(seed, life))}
    assert called == {}, f"{len(called)} of {TRIES}"


@pytest.mark.parametrize("life", [long_prefill, silent_think])
def test_the_same_server_is_called_hung_once_it_moves_nothing(life: Life) -> None:
    for seed in range(TRIES):

        def hangs(server: Server, step_s: float, clock: Clock) -> None:
            if clock.now_s < 2000:
                life(server, step_s, clock)

        assert verdicts(seed, hangs, until_s=1500.0)
