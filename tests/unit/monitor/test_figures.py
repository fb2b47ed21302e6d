"""From readings a second apart to what is shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.monitor.snapshot import (
    RATES_KEPT,
    MetricsHistory,
    ServerFigures,
    TimedMetrics,
    server_figures,
)
from sparkdeploy.server.metrics import Histogram, Metrics, Speculation

EDGES_S = (0.1, 0.2, math.inf)


def history(*readings: Metrics, first_s: float = 0.0, every_s: float = 1.0) -> MetricsHistory:
    seen = MetricsHistory()
    for number, metrics in enumerate(readings):
        seen = seen.after(TimedMetrics(first_s + number * every_s, metrics))
    return seen


def test_one_look_tells_no_rate_and_all_that_is_so_now() -> None:
    figures = server_figures(history(Metrics(generated_tokens=900, running=3, kv_usage=0.5)))
    assert figures == ServerFigures(
        running=3, kv_usage=0.5, generated_tokens=900, requests_a_minute=None
    )


@given(st.lists(st.integers(0, 500), min_size=1, max_size=90))
def test_the_rate_is_of_the_last_second_and_the_curve_of_all(grown: list[int]) -> None:
    counted = [sum(grown[:number]) for number in range(len(grown) + 1)]
    figures = server_figures(history(*(Metrics(generated_tokens=it) for it in counted)))
    assert figures.tokens_per_s == pytest.approx(grown[-1])
    assert figures.rates == pytest.approx(grown)


def test_the_last_minute_forgets_what_was_before() -> None:
    def at(second: int) -> Metrics:
        # Slow ones in the first ten seconds, fast ones later.
        slow, fast = min(second, 10), max(second - 10, 0)
        return Metrics(
            gap=Histogram(EDGES_S, (fast, fast + slow, fast + slow)),
            first_token=Histogram(EDGES_S, (0, second, second)),
            preemptions=min(second, 10),
            finished=second,
            drafted=Speculation(second, 2 * second, second + fast, (second, fast)),
            prefix_queries=10 * second,
            prefix_hits=5 * fast,
        )

    figures = server_figures(history(*map(at, range(101))))
    assert figures.gap.p50_s == pytest.approx(0.05)
    assert figures.gap.p95_s == pytest.approx(0.095)
    assert figures.first_token.p50_s == pytest.approx(0.15)
    assert (figures.preemptions, figures.preempted_lately) == (10, 0)
    assert figures.requests_a_minute == pytest.approx(60)
    assert figures.accepted == (1.0, 1.0)
    assert figures.prefix_hits == 0.5
    early = server_figures(history(*map(at, range(21))))
    assert early.requests_a_minute == pytest.approx(20), "no minute has passed"
    assert early.accepted == (1.0, 0.5)
    assert early.gap.p50_s == pytest.approx(0.1)


def test_a_server_that_started_anew_counts_from_there() -> None:
    before = [Metrics(generated_tokens=100 * number, finished=number) for number in range(5)]
    seen = history(*before)
    seen = seen.after(TimedMetrics(5.0, Metrics(generated_tokens=7, finished=0)))
    figures = server_figures(seen)
    assert figures.tokens_per_s is None, "what came of it before the first look nobody knows"
    assert figures.generated_tokens == 7
    assert figures.rates == (100.0,) * 4, "the curve goes on"
    seen = seen.after(TimedMetrics(6.0, Metrics(generated_tokens=57, finished=1)))
    assert server_figures(seen).tokens_per_s == 50
    assert server_figures(seen).requests_a_minute == 1


def test_a_late_answer_is_no_rate_of_now() -> None:
    seen = history(Metrics(generated_tokens=0), Metrics(generated_tokens=900), every_s=9.0)
    assert server_figures(seen).tokens_per_s is None
    assert server_figures(seen).generated_tokens == 900


def test_a_silent_second_is_a_gap_in_the_curve_which_has_an_end() -> None:
    seen = history(Metrics(generated_tokens=0), Metrics(generated_tokens=5)).idle()
    assert seen.rates == (5.0, 0.0)
    for _ in range(2 * RATES_KEPT):
        seen = seen.idle()
    assert len(seen.rates) == RATES_KEPT


def test_memory_does_not_grow() -> None:
    seen = history(*(Metrics(generated_tokens=number) for number in range(1000)))
    assert 60 <= len(seen.seen) <= 62
