"""What a server counts: a recorded /metrics, made ones, and percentiles against the truth."""

from __future__ import annotations

import bisect
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.server.tally import Histogram, Tally, read_tally

RECORDED = Path(__file__).with_name("metrics") / "cpu-0.32-mtp-2.txt"
"""Of the CPU engine that serves the twin with mtp-2, after some load."""
EDGES_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.5, 1.0, math.inf)


def test_a_recorded_server_is_read_whole() -> None:
    tally = read_tally(RECORDED.read_text())
    assert tally is not None
    assert (tally.running, tally.waiting) == (0, 0)
    assert tally.finished == 164
    assert tally.first_token.count == 167
    assert tally.gap.count == 3613
    assert tally.gap.edges_s[-1] == math.inf
    assert tally.generated_tokens is not None
    assert tally.generated_tokens > 3613
    assert (tally.preemptions, tally.kv_usage, tally.prefix_hits) == (0, 0, 0)
    assert tally.started_at_s is not None
    assert tally.drafted is not None
    assert len(tally.drafted.accepted_per_position) == 2
    # 1,877 of 3,613 gaps were of 50 ms at most.
    assert tally.gap.quantile(0.5) == pytest.approx(0.025 + 0.025 * (1806.5 - 10) / 1867)


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
    tally = read_tally("".join(f"vllm:{line}\n" for line in lines.split("|")))
    assert getattr(tally, field) == value


def test_another_process_is_known_by_its_start_or_by_counters_that_fell() -> None:
    before = Tally(generated_tokens=10, started_at_s=1.0)
    assert not Tally(generated_tokens=10, started_at_s=1.0).is_after_restart_of(before)
    assert Tally(generated_tokens=11, started_at_s=2.0).is_after_restart_of(before)
    assert Tally(generated_tokens=9).is_after_restart_of(before)
    assert not Tally(generated_tokens=None).is_after_restart_of(before)


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


def test_a_histogram_with_other_edges_begins_anew() -> None:
    now = Histogram((1.0, math.inf), (2, 2))
    assert now.since(Histogram()) == now
    assert now.since(Histogram((2.0, math.inf), (1, 1))) == now
