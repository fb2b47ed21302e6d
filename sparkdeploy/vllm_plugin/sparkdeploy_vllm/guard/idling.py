"""Telling for how long nobody has asked a server anything, by its own counters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkdeploy_vllm.guard.asking import PollingRequest, question
from sparkdeploy_vllm.guard.stalling import LONGEST_STEP_S, EngineWork, read_counters

LOOK_EVERY_S = 4.0


@dataclass(slots=True)
class Idleness:
    """How long no engine has had a request, nor moved anything between two looks."""

    idle_s: float = 0.0
    _last: dict[str, EngineWork] = field(default_factory=dict)
    _seen_s: float | None = None

    def see(self, now_s: float, engines: Mapping[str, EngineWork]) -> float:
        """Take in one look at the counters; the seconds without a request so far.

        A machine that slept, or a container that was paused, was not idle meanwhile. A page that
        tells of no engine tells of no idle one either.
        """
        passed_s = 0.0 if self._seen_s is None else min(now_s - self._seen_s, LONGEST_STEP_S)
        is_idle = bool(engines) and all(
            not (work.running or work.waiting)
            and (before := self._last.get(name)) is not None
            and before.moving == work.moving
            for name, work in engines.items()
        )
        self.idle_s = self.idle_s + passed_s if is_idle else 0.0
        self._seen_s, self._last = now_s, dict(engines)
        return self.idle_s


@dataclass(slots=True)
class IdleWatch:
    """Looks at a healthy server's counters, and says once that it is to stop."""

    metrics: PollingRequest
    stop_after_s: float
    idleness: Idleness = field(default_factory=Idleness)

    def tick(self, now_s: float) -> float | None:
        """Move on; for how long it has been idle, once that is as long as it may be."""
        answer = self.metrics.tick(now_s)
        if answer is None or answer.status != b"200":
            return None
        idle_s = self.idleness.see(now_s, read_counters(answer.body))
        return idle_s if idle_s >= self.stop_after_s else None


@dataclass(frozen=True, slots=True)
class IdleOrders:
    """When a server that nobody asks stops, and how to ask for its counters."""

    server: str
    """`http://127.0.0.1:8000`."""
    stop_after_s: float
    key: str = ""

    def watch(self) -> IdleWatch:
        """A watch that has seen nothing yet; ValueError where the server's address is none."""
        metrics = question(f"{self.server}/metrics", key=self.key)
        metrics.every_s = LOOK_EVERY_S
        return IdleWatch(metrics, self.stop_after_s)
