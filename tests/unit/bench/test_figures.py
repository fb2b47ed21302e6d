"""Quantiles and intervals, held against the standard library and published tables."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.figures import Measured, covered_s, quantiles, summarise, t_quantile
from sparkdeploy.bench.measure import Collected
from sparkdeploy.bench.record import Quantiles, RequestSample
from sparkdeploy.bench.suites import Condition

VALUES = st.floats(min_value=-1e6, max_value=1e6)


def test_quantiles_of_one_value_are_that_value() -> None:
    assert quantiles([0.5]) == Quantiles(1, 0.5, 0.5, 0.5, 0.5, 0.5)
    assert quantiles([]) is None


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (10, 2.2281), (120, 1.9799)],
)
def test_t_is_that_of_the_tables(degrees: int, t: float) -> None:
    assert t_quantile(degrees) == pytest.approx(t, abs=5e-5)


@given(st.lists(VALUES, min_size=2, max_size=30))
def test_the_interval_stands_around_the_mean(values: list[float]) -> None:
    found = summarise(values)
    assert found is not None
    assert found.low95 is not None
    assert found.high95 is not None
    assert found.low95 <= found.mean <= found.high95
    assert found.stdev == pytest.approx(statistics.stdev(values))


def test_published_rounds_give_the_published_interval() -> None:
    found = summarise([51.3, 51.9, 51.2])
    assert found is not None
    assert found.mean == pytest.approx(51.4667, abs=1e-4)
    assert found.median == pytest.approx(51.3)
    assert found.low95 == pytest.approx(50.5260, abs=1e-3)
    assert found.high95 == pytest.approx(52.4073, abs=1e-3)


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12)


@given(SPANS)
def test_a_moment_covered_twice_counts_once(pairs: list[tuple[int, int]]) -> None:
    spans = [(min(pair), max(pair)) for pair in pairs]
    seconds = {second for start, end in spans for second in range(start, end)}
    assert covered_s([(float(start), float(end)) for start, end in spans]) == len(seconds)


def test_a_warm_up_counts_in_no_figure() -> None:
    def request(number: int, wait_s: float) -> Measured:
        sample = RequestSample(
            round=number,
            stream=0,
            prompt="code",
            sent_s=0.0,
            connect_s=0.0,
            duration_s=wait_s + 1,
            completion_tokens=2,
            ttft_s=wait_s,
            end_to_end_tok_s=2 / (wait_s + 1),
        )
        return Measured(sample, 0.0, (wait_s, wait_s + 1))

    rounds = {0: [request(0, 99.0)], 1: [request(1, 1.0)], 2: [request(2, 3.0)]}
    cell = Collected(rounds).cell(Condition("code", 2))
    assert [item.round for item in cell.rounds] == [1, 2]
    assert cell.latency.ttft_s is not None
    assert (cell.latency.ttft_s.count, cell.latency.ttft_s.max) == (2, 3.0)
    assert cell.statistics["ttft_p50_s"].mean == 2.0
    # The record keeps it all the same.
    assert [sample.round for sample in cell.samples] == [0, 1, 2]
