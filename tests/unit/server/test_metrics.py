"""What a server counts: a recorded /metrics, made ones, and percentiles against the truth."""

from __future__ import annotations

import bisect
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.server.metrics import (
    LEAST_DRAFTS,
    Histogram,
    Metrics,
    Speculation,
    low_acceptance_warning,
    read_metrics,
)

RECORDED = Path(__file__).with_name("metrics") / "cpu-0.32-mtp-2.txt"
"""Of the CPU engine that serves the twin with mtp-2, after some load."""
DRAFTER = Path(__file__).with_name("metrics") / "cpu-0.32-dflash-12.txt"
"""vLLM 0.32 for CPUs with a twin's made drafter, twelve tokens a step."""
EDGES_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.5, 1.0, math.inf)


def speculation(text: str) -> Speculation | None:
    metrics = read_metrics(text)
    return metrics.drafted if metrics is not None else None


def test_a_recorded_server_is_read_whole() -> None:
    metrics = read_metrics(RECORDED.read_text())
    assert metrics is not None
    assert (metrics.running, metrics.waiting) == (0, 0)
    assert metrics.finished == 164
    assert metrics.first_token.count == 167
    assert metrics.gap.count == 3613
    assert metrics.gap.edges_s[-1] == math.inf
    assert metrics.generated_tokens is not None
    assert metrics.generated_tokens > 3613
    assert (metrics.preemptions, metrics.kv_usage, metrics.prefix_hits) == (0, 0, 0)
    assert metrics.started_at_s is not None
    assert metrics.drafted is not None
    assert len(metrics.drafted.accepted_per_position) == 2
    # 1,877 of 3,613 gaps were of 50 ms at most.
    assert metrics.gap.quantile(0.5) == pytest.approx(0.025 + 0.025 * (1806.5 - 10) / 1867)


NAMES = {
    "gpu_cache_usage_perc 0.5": ("kv_usage", 0.5),
    'kv_cache_usage_perc{engine="0"} 0.1|kv_cache_usage_perc{engine="1"} 0.9': ("kv_usage", 0.9),
    "gpu_prefix_cache_hits_total 7": ("prefix_hits", 7),
    "gpu_prefix_cache_hits_total 7|prefix_cache_hits_total 7": ("prefix_hits", 7),
    'num_requests_waiting_by_reason{reason="x"} 9|num_requests_waiting 2': ("waiting", 2),
    'num_requests_running{engine="0"} 1|num_requests_running{engine="1"} 2': ("running", 3),
    "generation_tokens 5": ("generated_tokens", 5),
    "generation_tokens_total 5|generation_tokens_created 1.7e9": ("generated_tokens", 5),
    "generation_tokens_total NaN|num_requests_running 0": ("generated_tokens", None),
}


@pytest.mark.parametrize("lines", NAMES)
def test_each_figure_by_the_names_of_every_release(lines: str) -> None:
    field, value = NAMES[lines]
    metrics = read_metrics("".join(f"vllm:{line}\n" for line in lines.split("|")))
    assert getattr(metrics, field) == value


def test_another_process_is_known_by_its_start_or_by_counters_that_fell() -> None:
    before = Metrics(generated_tokens=10, started_at_s=1.0)
    assert not Metrics(generated_tokens=10, started_at_s=1.0).is_after_restart_of(before)
    assert Metrics(generated_tokens=11, started_at_s=2.0).is_after_restart_of(before)
    assert Metrics(generated_tokens=9).is_after_restart_of(before)
    assert not Metrics(generated_tokens=None).is_after_restart_of(before)
    assert not Metrics(running=0, waiting=0).is_after_restart_of(Metrics(running=4, waiting=4))


def histogram(durations_s: list[float]) -> Histogram:
    """What a server would count of these."""
    ordered = sorted(durations_s)
    return Histogram(EDGES_S, tuple(bisect.bisect_right(ordered, edge_s) for edge_s in EDGES_S))


DURATIONS = st.lists(st.floats(0.0, 3.0), max_size=60)


@given(earlier=DURATIONS, later=DURATIONS, share=st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(
    earlier: list[float], later: list[float], share: float
) -> None:
    lately = histogram(earlier + later).since(histogram(earlier))
    assert lately == histogram(later)
    found = lately.quantile(share)
    if not later:
        assert found is None
        return
    true_s = sorted(later)[max(math.ceil(share * len(later)) - 1, 0)]
    upper = bisect.bisect_left(EDGES_S, true_s)
    lower_s = EDGES_S[upper - 1] if upper else 0.0
    assert found is not None
    assert lower_s <= found <= min(EDGES_S[upper], EDGES_S[-2]) + 1e-9


@pytest.mark.parametrize(("share", "found_s"), [(0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (1.0, 2.0)])
def test_a_percentile_at_an_edge_is_the_edge_and_no_later_one(share: float, found_s: float) -> None:
    counted = Histogram((1.0, 2.0, 4.0, math.inf), (5, 10, 10, 10))
    assert counted.quantile(share) == found_s
    half = Histogram((1.0, 2.0, 4.0, math.inf), (5, 5, 5, 10))
    assert half.quantile(0.5) == 1.0


def test_a_histogram_with_other_edges_begins_anew() -> None:
    now = Histogram((1.0, math.inf), (2, 2))
    assert now.since(Histogram()) == now
    assert now.since(Histogram((2.0, math.inf), (1, 1))) == now


@pytest.mark.parametrize(
    ("drafts", "tokens", "accepted", "is_said"),
    [
        (LEAST_DRAFTS, 2400, 119, True),
        (LEAST_DRAFTS, 2400, 120, False),
        (LEAST_DRAFTS - 1, 2388, 0, False),
        (10_000, 120_000, 0, True),
        # Nothing was drafted in steps that might have: other clients' requests forbade it.
        (LEAST_DRAFTS, 0, 0, False),
    ],
)
def test_it_takes_two_hundred_steps_and_less_than_one_in_twenty(
    drafts: int, tokens: int, accepted: int, is_said: bool
) -> None:
    assert bool(low_acceptance_warning(Speculation(drafts, tokens, accepted))) is is_said


def test_a_server_that_counts_no_drafts_is_not_spoken_of() -> None:
    assert low_acceptance_warning(None) == ""
    assert speculation("vllm:generation_tokens_total 7\n") is None


@pytest.mark.parametrize("suffix", ["_total", ""])
def test_recorded_counters_are_read_under_both_of_their_names(suffix: str) -> None:
    """Prometheus' text adds `_total`; vLLM's own names, as 0.25's documentation has them, do not.

    `_created` beside each is a time, and no count.
    """
    text = DRAFTER.read_text().replace("_total{", f"{suffix}{{")
    counted = speculation(text)
    assert counted is not None
    assert (counted.drafts, counted.draft_tokens, counted.accepted_tokens) == (321, 3852, 179)
    assert counted.accepted_per_position == (179, *(0,) * 11)
    said = low_acceptance_warning(counted)
    assert "179 of 3,852 drafted tokens were accepted in 321 steps (4.6%, less than 5%)" in said
    assert "--set serve.speculative=null" in said


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_figures_that_are_none_end_in_nothing(value: str) -> None:
    assert speculation(f"vllm:spec_decode_num_drafts_total {value}\n") is None
