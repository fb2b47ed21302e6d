"""Telling for how long nobody has asked a server anything, by its own counters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkdeploy_vllm.guard.asking import PollingRequest
from sparkdeploy_vllm.guard.stalling import LONGEST_STEP_S, EngineWork, read_counters

SETTLED_AFTER_S = 2.0
"""A server may count a token only after it has sent it."""


@dataclass(slots=True)
class Idleness:
    """How long no engine has had a request, nor moved anything between two looks."""

    idle_s: float = 0.0
    _last: dict[str, EngineWork] = field(default_factory=dict)
    _seen_s: float | None = None

    def see(self, now_s: float, engines: Mapping[str, EngineWork], own_tokens: int = 0) -> float:
        """Take in one look at the counters; the seconds without a request so far.

        A machine that slept, or a container that was paused, was not idle meanwhile. A page that
        tells of no engine tells of no idle one either. For `own_tokens` the guard itself may have
        asked since the last look: so many are nobody's request.
        """
        passed_s = 0.0 if self._seen_s is None else min(now_s - self._seen_s, LONGEST_STEP_S)
        is_idle = (
            bool(engines)
            and not any(work.running or work.waiting for work in engines.values())
            and engines.keys() <= self._last.keys()
            and self._is_still(engines, own_tokens)
        )
        self.idle_s = self.idle_s + passed_s if is_idle else 0.0
        self._seen_s, self._last = now_s, dict(engines)
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
