"""From a server's readings, one a second, to the figures that are shown. Nothing here looks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.server.metrics import Histogram, Metrics, Speculation

WINDOW_S = 60.0
RATES_KEPT = 240
"""Of the sparkline: as many seconds as a wide terminal has columns."""
NOW_S = 3.0
"""A rate over a longer gap is an average, and not what is so now."""


@dataclass(frozen=True, slots=True)
class TimedMetrics:
    at_s: float
    """Of a clock that never goes back."""
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class MetricsHistory:
    """What one server counted in the last minute, and its rates for longer."""

    seen: tuple[TimedMetrics, ...] = ()
    """Oldest first; all of one server process."""
    rates: tuple[float, ...] = ()

    def after(self, latest: TimedMetrics) -> MetricsHistory:
        """Return the history with one more reading; a server that started anew has no past."""
        last = self.seen[-1] if self.seen else None
        if last is not None and latest.at_s <= last.at_s:
            return self
        if last is not None and latest.metrics.is_after_restart_of(last.metrics):
            return MetricsHistory((latest,), self.rates)
        rate = _rate(last, latest)
        rates = self.rates if rate is None else (*self.rates, rate)[-RATES_KEPT:]
        since_s = latest.at_s - WINDOW_S
        # One older than a minute stays: the minute begins between it and the next.
        kept = [
            item for item, follower in pairwise((*self.seen, latest)) if follower.at_s > since_s
        ]
        return replace(self, seen=(*kept, latest), rates=rates)

    def idle(self) -> MetricsHistory:
        """Return the history of a server that did not answer: nothing came out of it."""
        return replace(self, rates=(*self.rates, 0.0)[-RATES_KEPT:])


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds; None where nothing of the kind happened in the last minute."""

    p50_s: float | None = None
    p95_s: float | None = None

    @classmethod
    def of(cls, lately: Histogram) -> Percentiles:
        return cls(lately.quantile(0.5), lately.quantile(0.95))


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """None: the server does not count it, or nothing happened that it could be told from."""

    tokens_per_s: float | None = None
    rates: tuple[float, ...] = ()
    running: int | None = None
    waiting: int | None = None
    requests_a_minute: float | None = None
    first_token: Percentiles = Percentiles()
    gap: Percentiles = Percentiles()
    accepted: tuple[float, ...] = ()
    """Of the last minute's drafts the share that was accepted, by position; 0 to 1."""
    prefix_hits: float | None = None
    """Of the last minute's prompt tokens that were looked for; 0 to 1."""
    kv_usage: float | None = None
    preemptions: int | None = None
    preempted_lately: int | None = None
    generated_tokens: int | None = None
    prompt_tokens: int | None = None


def server_figures(history: MetricsHistory) -> ServerFigures:
    if not history.seen:
        return ServerFigures(rates=history.rates)
    newest, oldest = history.seen[-1], history.seen[0]
    now, then = newest.metrics, oldest.metrics
    before = history.seen[-2] if len(history.seen) > 1 else None
    return ServerFigures(
        tokens_per_s=_rate(before, newest),
        rates=history.rates,
        running=_whole(now.running),
        waiting=_whole(now.waiting),
        requests_a_minute=_a_minute(history.seen),
        first_token=Percentiles.of(now.first_token.since(then.first_token)),
        gap=Percentiles.of(now.gap.since(then.gap)),
        accepted=_accepted(now.drafted, then.drafted),
        prefix_hits=_share(
            _grown(now.prefix_hits, then.prefix_hits),
            _grown(now.prefix_queries, then.prefix_queries),
        ),
        kv_usage=now.kv_usage,
        preemptions=_whole(now.preemptions),
        preempted_lately=_whole(_grown(now.preemptions, then.preemptions)),
        generated_tokens=_whole(now.generated_tokens),
        prompt_tokens=_whole(now.prompt_tokens),
    )


def _rate(before: TimedMetrics | None, after: TimedMetrics) -> float | None:
    if before is None or after.at_s - before.at_s > NOW_S:
        return None
    grown = _grown(after.metrics.generated_tokens, before.metrics.generated_tokens)
    return None if grown is None else grown / (after.at_s - before.at_s)


def _a_minute(seen: Sequence[TimedMetrics]) -> float | None:
    """Return finished requests a minute; a watch that has just begun knows less than a minute."""
    span_s = seen[-1].at_s - seen[0].at_s
    grown = _grown(seen[-1].metrics.finished, seen[0].metrics.finished)
    return None if grown is None or span_s <= 0 else grown * 60.0 / max(span_s, WINDOW_S)


def _accepted(now: Speculation | None, then: Speculation | None) -> tuple[float, ...]:
    if now is None or then is None or now.drafts <= then.drafts:
        return ()
    if then.accepted_per_position and len(then.accepted_per_position) != len(
        now.accepted_per_position
    ):
        return ()
    lately = now.since(then)
    return tuple(accepted / lately.drafts for accepted in lately.accepted_per_position)


def _grown(now: float | None, then: float | None) -> float | None:
    return None if now is None or then is None else max(now - then, 0.0)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else min(part / whole, 1.0)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
