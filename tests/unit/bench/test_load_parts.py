"""The parts of a load that need no server: arrivals, limits, the search for a rate."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.load.plan import (
    CLOSE,
    Arrivals,
    Law,
    Schedule,
    Search,
    parse_limits,
    parse_rates,
    steady_moments,
)
from sparkdeploy.bench.load.record import LoadResult
from sparkdeploy.bench.record import RequestSample
from sparkdeploy.errors import UsageError

RATES = st.floats(0.1, 100)


def steady_requests(came: Schedule) -> int:
    return sum(came.is_steady(index) for index in range(len(came.moments_s)))


@given(rate=RATES, count=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
def test_the_last_request_comes_when_its_rate_says(rate: float, count: int, seed: int) -> None:
    for law in Law:
        moments = steady_moments(law, rate, count, seed=seed)
        assert moments == sorted(moments)
        assert moments[-1] == pytest.approx(count / rate)


def test_intervals_spread_as_their_law_says() -> None:
    spreads = {}
    for law in Law:
        moments = steady_moments(law, 5.0, 20_000, seed=1)
        gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
        spreads[law] = statistics.stdev(gaps) / statistics.fmean(gaps)

    # Of an exponential law the deviation is the mean.
    assert spreads[Law.POISSON] == pytest.approx(1, abs=0.03)
    assert spreads[Law.CONSTANT] == pytest.approx(0, abs=1e-6)


def test_a_ramp_rises_evenly_and_counts_nowhere() -> None:
    came = Arrivals(Law.CONSTANT, requests=100, ramp_s=4.0).at(10.0)

    ramp = [moment for moment in came.moments_s if moment < 4.0]
    assert len(came.moments_s) == 120
    # Half as many as at the full rate, of them a quarter in the first half.
    assert len(ramp) == pytest.approx(20, abs=1)
    assert len([moment for moment in ramp if moment < 2.0]) == pytest.approx(5, abs=1)
    assert steady_requests(came) == pytest.approx(100, abs=1)
    assert came.moments_s[-1] == pytest.approx(14.0)
    steady = [moment for moment in came.moments_s if moment >= 4.0]
    for earlier, later in itertools.pairwise(steady):
        assert later - earlier == pytest.approx(0.1)


@given(rate=RATES, ramp=st.floats(0, 60), count=st.integers(1, 100))
def test_a_schedule_has_requests_after_its_ramp(rate: float, ramp: float, count: int) -> None:
    came = Arrivals(requests=count, ramp_s=ramp).at(rate)

    assert list(came.moments_s) == sorted(came.moments_s)
    assert steady_requests(came) >= 1


def sample(*, ttft: float = 1.0, tpot: float | None = 0.02, e2e: float = 9.0) -> RequestSample:
    return RequestSample(1, 0, "x", sent_s=0.0, duration_s=e2e, ttft_s=ttft, tpot_s=tpot)


@pytest.mark.parametrize(
    ("text", "one", "holds"),
    [
        ("ttft=2s", sample(ttft=2.0), True),
        ("ttft=2s", sample(ttft=2.000001), False),
        ("tpot=1ms", sample(tpot=None), True),
        ("tpot=20ms", sample(tpot=0.02), True),
        ("tpot=20ms", sample(tpot=0.021), False),
        ("e2e=0.15min", sample(e2e=9.0), True),
        ("e2e=8.9s", sample(e2e=9.0), False),
        ("ttft=2s, tpot=100ms", sample(ttft=1.0, tpot=0.2), False),
    ],
)
def test_a_limit_holds_up_to_itself(text: str, one: RequestSample, holds: bool) -> None:
    assert parse_limits(text).holds(one) is holds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a limit: ''"),
        ("ttft", "not a limit: 'ttft'"),
        ("itl=2s", "not a limit: 'itl=2s'"),
        ("ttft=2", "ttft: not a duration: '2'"),
        ("ttft=2 s", "ttft: not a duration: '2 s'"),
        ("ttft=-2s", "not a duration"),
        ("ttft=0s", "not a duration"),
        ("ttft=infs", "not a duration"),
        ("ttft=2s,", "not a limit: ''"),
        ("ttft=2s,ttft=3s", "limited twice"),
    ],
)
def test_what_is_no_limit_is_named(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_limits(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1,", "nan", "1e9", "inf", "²", "20000"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a rate"):
        parse_rates(text)


def tried_at(rate_per_s: float, held: int, requests: int = 100) -> LoadResult:
    return LoadResult("poisson", rate_per_s, 0, 0.0, 60.0, requests, 0, 1.0, 1.0, 1.0, 1, held=held)


def searched(search: Search, knee: float) -> list[LoadResult]:
    """What is tried of a server that holds limits up to `knee` requests a second."""
    tries: list[LoadResult] = []
    while (rate := search.next_rate(tries)) is not None:
        tries.append(tried_at(rate, 100 if rate <= knee else 10))
    return tries


@given(knee=st.floats(0.02, 30))
def test_a_search_ends_close_below_where_limits_break(knee: float) -> None:
    search = Search((), 0.95)

    tries = searched(search, knee)
    found = search.found(tries)

    assert found.rate_per_s is not None
    assert found.fails_at_per_s is not None
    assert found.rate_per_s <= knee < found.fails_at_per_s <= found.rate_per_s * CLOSE
    assert (found.held, found.requests) == (100, 100)


def test_given_rates_are_all_tried_and_then_what_lies_between() -> None:
    search = Search((1.0, 2.0, 4.0), 0.95)

    tried = [item.rate_per_s for item in searched(search, 2.5)]

    assert tried[:3] == [1.0, 2.0, 4.0]
    assert all(2.0 < rate < 4.0 for rate in tried[3:])
    assert len(tried) > 4


def test_a_rate_that_holds_above_one_that_failed_is_not_believed() -> None:
    tries = [tried_at(1.0, 100), tried_at(2.0, 94), tried_at(4.0, 95)]

    found = Search((1.0, 2.0, 4.0), 0.95).found(tries)

    assert (found.rate_per_s, found.fails_at_per_s) == (1.0, 2.0)
