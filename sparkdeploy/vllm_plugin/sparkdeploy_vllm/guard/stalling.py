"""Telling a hung engine from a busy one, and an idle server, by the server's own counters.

An engine that hangs leaves /health green: another process answers it.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sparkdeploy_vllm.guard.asking import PollingRequest, question
from sparkdeploy_vllm.guard.listening import connected, is_server_below

LOOK_EVERY_S = 4.0
LONGEST_STEP_S = 10.0
"""Between two looks no more is counted: a machine that slept, or a container that was paused, has
waited for nothing."""
SETTLED_AFTER_S = 2.0
"""A server may count a token only after it has sent it."""
_RUNNING, _WAITING = b"num_requests_running", b"num_requests_waiting"
_WRITTEN = b"generation_tokens_total"
_WORKED = (_WRITTEN, b"prompt_tokens_total")
_SAMPLE = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|generation_tokens_total|prompt_tokens_total"
    rb"|kv_cache_usage_perc|gpu_cache_usage_perc)(?:\{([^}]*)\})? (\S+)",
    re.MULTILINE,
)
_ENGINE = re.compile(rb'engine="([^"]*)"')


@dataclass(frozen=True, slots=True)
class EngineWork:
    running: float
    has_worked: bool
    moving: tuple[tuple[bytes, bytes], ...]
    """Tokens read and written, and use of the KV cache, which alone moves in a long prefill."""
    waiting: float = field(default=0.0, compare=False)

    @property
    def written_tokens(self) -> float:
        return sum(_number(value) for name, value in self.moving if name == _WRITTEN)

    def as_facts(self) -> dict[str, object]:
        told = {name.decode(): value.decode(errors="replace") for name, value in self.moving}
        return {"running": self.running, **told}


def read_counters(page: bytes) -> dict[str, EngineWork]:
    """Each engine's counters, by its number, from a page in Prometheus' format."""
    told: dict[str, list[tuple[bytes, bytes]]] = {}
    for name, labels, value in _SAMPLE.findall(page):
        number = _ENGINE.search(labels)
        engine = number[1].decode(errors="replace") if number else ""
        told.setdefault(engine, []).append((name, value))
    return {engine: _counters(samples) for engine, samples in told.items()}


def _counters(samples: list[tuple[bytes, bytes]]) -> EngineWork:
    return EngineWork(
        running=sum(_number(value) for name, value in samples if name == _RUNNING),
        has_worked=any(_number(value) > 0 for name, value in samples if name in _WORKED),
        moving=tuple(sample for sample in samples if sample[0] not in (_RUNNING, _WAITING)),
        waiting=sum(_number(value) for name, value in samples if name == _WAITING),
    )


def _number(value: bytes) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0


@dataclass(slots=True)
class _Stopwatch:
    """Seconds between looks, each counted for LONGEST_STEP_S at most."""

    _seen_s: float | None = None

    def passed_s(self, now_s: float) -> float:
        before_s, self._seen_s = self._seen_s, now_s
        return 0.0 if before_s is None else min(now_s - before_s, LONGEST_STEP_S)


@dataclass(slots=True)
class Stillness:
    """How long each engine has had requests and has moved nothing."""

    stall_s: float
    _last: dict[str, EngineWork] = field(default_factory=dict)
    _still_s: dict[str, float] = field(default_factory=dict)
    _stopwatch: _Stopwatch = field(default_factory=_Stopwatch)

    def see(self, now_s: float, engines: Mapping[str, EngineWork]) -> str | None:
        """Take in one look at the counters; the engine that has stood still for `stall_s`.

        The first request of all may wait for kernels to be compiled: an engine that has worked at
        nothing yet is not judged.
        """
        passed_s = self._stopwatch.passed_s(now_s)
        for engine, counters in engines.items():
            before = self._last.get(engine)
            stands = (
                before is not None
                and before.running > 0
                and counters.running > 0
                and counters.has_worked
                and counters.moving == before.moving
            )
            self._still_s[engine] = self._still_s.get(engine, 0.0) + passed_s if stands else 0.0
        self._last = dict(engines)
        return next((one for one, still in self._still_s.items() if still >= self.stall_s), None)

    def facts_of(self, engine: str) -> dict[str, object]:
        still_s = round(self._still_s[engine], 1)
        return {"engine": engine, "still_s": still_s, **self._last[engine].as_facts()}


@dataclass(slots=True)
class Waiters:
    """How long each connection has been open while the server moved nothing.

    vLLM counts a request as running once its engine has made a step with it. An engine that hung
    while it was idle, or in a request's first step, never does: the connection alone shows that
    somebody waits.
    """

    look: Callable[[], frozenset[bytes]]
    _waited_s: dict[bytes, float] = field(default_factory=dict)
    _acquitted: frozenset[bytes] = frozenset()

    def see(self, passed_s: float, *, has_moved: bool) -> float:
        """Take in one look, so long after the last one; the longest wait in seconds."""
        there = self.look()
        self._acquitted &= there
        before = {} if has_moved else self._waited_s
        self._waited_s = {
            peer: before[peer] + passed_s if peer in before else 0.0
            for peer in there - self._acquitted
        }
        return max(self._waited_s.values(), default=0.0)

    def acquit(self) -> None:
        """Those that are there now are asked about once: a client may hold a connection open."""
        self._acquitted |= frozenset(self._waited_s)
        self._waited_s.clear()


@dataclass(slots=True)
class Canary:
    """One token asked of a server that nobody has asked anything for long, or that is in doubt."""

    ask: PollingRequest
    after_idle_s: float = math.inf
    is_asked: bool = False
    _idle_since_s: float | None = None
    _waited_s: float = 0.0
    _stopwatch: _Stopwatch = field(default_factory=_Stopwatch)

    def tick(self, now_s: float, *, is_idle: bool) -> bool:
        """Move on; whether the token has not come in time."""
        if self.is_asked:
            return self._wait(now_s)
        if not is_idle or self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= self.after_idle_s:
            self.send(now_s)
        return False

    def send(self, now_s: float) -> None:
        """Ask now; one that is under way stays the only one."""
        if not self.is_asked:
            self.is_asked, self._waited_s = True, 0.0
            self._stopwatch.passed_s(now_s)
            self.ask.tick(now_s)

    def _wait(self, now_s: float) -> bool:
        # While the container was paused, server and guard have both waited for nothing.
        self._waited_s += self._stopwatch.passed_s(now_s)
        answer = self.ask.tick(now_s)
        if answer is None and self.ask.is_waiting:
            return False
        self.is_asked, self._idle_since_s = False, None
        # A refused connection is a server that ends or begins, and no hung one.
        return answer is None and self._waited_s >= self.ask.answer_timeout_s


@dataclass(slots=True)
class StallWatch:
    """Looks at a healthy server's counters, and says once what stands still."""

    metrics: PollingRequest
    stillness: Stillness
    canary: Canary | None = None
    waiters: Waiters | None = None
    _last: Mapping[str, EngineWork] = field(default_factory=dict)
    _waited_s: float = 0.0
    _stopwatch: _Stopwatch = field(default_factory=_Stopwatch)

    def tick(self, now_s: float) -> dict[str, object] | None:
        """Move on; what is known of a hang that has just been noticed."""
        canary = self.canary
        is_unanswered = canary is not None and canary.tick(now_s, is_idle=self._is_idle)
        # Behind many requests of others it waits its turn; whether those move is looked at below.
        if canary is not None and is_unanswered and self._is_idle:
            waited = {"waited_s": round(self._waited_s, 1)} if self._waited_s else {}
            return {"canary_unanswered_s": canary.ask.answer_timeout_s, **waited}
        answer = self.metrics.tick(now_s)
        if answer is None or answer.status != b"200":
            return None
        engines = read_counters(answer.body)
        self._ask_for_who_waits(now_s, engines)
        self._last = engines
        engine = self.stillness.see(now_s, engines)
        return None if engine is None else self.stillness.facts_of(engine)

    @property
    def is_asking(self) -> bool:
        return self.canary is not None and self.canary.is_asked

    @property
    def _is_idle(self) -> bool:
        return bool(self._last) and not any(work.running for work in self._last.values())

    def _ask_for_who_waits(self, now_s: float, engines: Mapping[str, EngineWork]) -> None:
        if self.waiters is None or self.canary is None:
            return
        passed_s = self._stopwatch.passed_s(now_s)
        waited_s = self.waiters.see(passed_s, has_moved=engines != self._last)
        has_worked = any(work.has_worked for work in engines.values())
        if has_worked and self._is_idle and waited_s >= self.stillness.stall_s:
            self._waited_s = waited_s
            self.waiters.acquit()
            self.canary.send(now_s)


@dataclass(slots=True)
class Idleness:
    """How long no engine has had a request, nor moved anything between two looks."""

    idle_s: float = 0.0
    _last: dict[str, EngineWork] = field(default_factory=dict)
    _stopwatch: _Stopwatch = field(default_factory=_Stopwatch)

    def see(self, now_s: float, engines: Mapping[str, EngineWork], own_tokens: int = 0) -> float:
        """Take in one look at the counters; the seconds without a request so far.

        A machine that slept, or a container that was paused, was not idle meanwhile. A page that
        tells of no engine tells of no idle one either. For `own_tokens` the guard itself may have
        asked since the last look: so many are nobody's request.
        """
        passed_s = self._stopwatch.passed_s(now_s)
        is_idle = (
            bool(engines)
            and not any(work.running or work.waiting for work in engines.values())
            and engines.keys() <= self._last.keys()
            and self._is_still(engines, own_tokens)
        )
        self.idle_s = self.idle_s + passed_s if is_idle else 0.0
        self._last = dict(engines)
        return self.idle_s

    def _is_still(self, engines: Mapping[str, EngineWork], own_tokens: int) -> bool:
        pairs = [(self._last[name], work) for name, work in engines.items()]
        if not own_tokens:
            return all(before.moving == work.moving for before, work in pairs)
        written = [work.written_tokens - before.written_tokens for before, work in pairs]
        return min(written) >= 0 and sum(written) <= own_tokens


@dataclass(slots=True)
class IdleWatch:
    """Looks at a healthy server's counters, and says once that it is to stop."""

    metrics: PollingRequest
    stop_after_s: float
    idleness: Idleness = field(default_factory=Idleness)
    _settled_s: float = 0.0
    _own_tokens: int = 0

    def overlook(self, now_s: float) -> None:
        """The guard itself asks the server for one token now: who else asks writes further ones."""
        self._settled_s, self._own_tokens = now_s + SETTLED_AFTER_S, 1

    def tick(self, now_s: float) -> float | None:
        """Move on; for how long it has been idle, once that is as long as it may be."""
        answer = self.metrics.tick(now_s)
        if answer is None or answer.status != b"200" or now_s < self._settled_s:
            return None
        idle_s = self.idleness.see(now_s, read_counters(answer.body), self._own_tokens)
        self._own_tokens = 0
        return idle_s if idle_s >= self.stop_after_s else None


def stall_watch(
    server: str, key: str, stall_s: float, *, canary_after_s: float = math.inf, canary_model: str
) -> StallWatch:
    """Return a watch over a server such as `http://127.0.0.1:8000`.

    An idle server is asked for a token once it was asked nothing for `canary_after_s`; one whose
    model writes no text, which has no `canary_model`, never.
    """
    metrics = metrics_request(server, key)
    canary = None
    if canary_model:
        body = json.dumps({"model": canary_model, "prompt": "a", "max_tokens": 1}).encode()
        ask = question(f"{server}/v1/completions", method="POST", key=key, body=body)
        ask.every_s, ask.answer_timeout_s, ask.may_send = 0.0, stall_s, is_server_below
        canary = Canary(ask, canary_after_s)
    waiters = Waiters(functools.partial(connected, metrics.port))
    return StallWatch(metrics, Stillness(stall_s), canary, waiters)


def metrics_request(server: str, key: str) -> PollingRequest:
    metrics = question(f"{server}/metrics", key=key)
    metrics.every_s, metrics.may_send = LOOK_EVERY_S, is_server_below
    return metrics
