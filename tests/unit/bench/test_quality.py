"""The maths of `bench quality`: laws, cases worked by hand, and what the gate says."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparkdeploy.bench.figures import Estimate
from sparkdeploy.bench.quality.comparison import (
    Thresholds,
    compare,
    comparison_as_dict,
    comparison_lines,
    divergence,
    failures,
    mean_over_texts,
    proportion,
)
from sparkdeploy.errors import BenchError
from tests.unit.bench.captures import capture, logs, text

VOCABULARY = 12


@st.composite
def distributions(draw: st.DrawFn) -> dict[int, float]:
    weights = draw(st.lists(st.floats(1e-6, 1.0), min_size=VOCABULARY, max_size=VOCABULARY))
    total = sum(weights)
    return {token: math.log(weight / total) for token, weight in enumerate(weights)}


def top(full: dict[int, float], count: int) -> dict[int, float]:
    return dict(sorted(full.items(), key=lambda item: -item[1])[:count])


@given(distributions(), distributions(), st.integers(1, VOCABULARY), st.integers(1, VOCABULARY))
def test_what_the_tops_show_never_exceeds_the_whole_divergence(
    p: dict[int, float], q: dict[int, float], told_p: int, told_q: int
) -> None:
    whole = sum(math.exp(p[token]) * (p[token] - q[token]) for token in p)
    shown = divergence(top(p, told_p), top(q, told_q))
    assert 0.0 <= shown.nats <= whole + 1e-6
    assert 0.0 <= shown.unseen <= 1.0


@given(distributions(), st.lists(st.floats(-2.0, 2.0), min_size=VOCABULARY, max_size=VOCABULARY))
def test_the_bound_from_above_holds_where_the_untold_differ_no_more_than_the_told(
    p: dict[int, float], tilts: list[float]
) -> None:
    tilted = {token: p[token] + tilt for token, tilt in enumerate(tilts)}
    norm = math.log(sum(math.exp(value) for value in tilted.values()))
    q = {token: value - norm for token, value in tilted.items()}
    # Those are told whose ratios are the widest.
    by_width = sorted(p, key=lambda token: tilts[token])
    told = [*by_width[:2], *by_width[-2:]]
    shown = divergence({t: p[t] for t in told}, {t: q[t] for t in told})
    bucket = [token for token in p if token not in told]
    rest = sum(math.exp(p[t]) for t in bucket) / sum(math.exp(q[t]) for t in bucket)
    spread = [abs(p[t] - q[t] - math.log(rest)) for t in told]
    assume(max(abs(p[t] - q[t] - math.log(rest)) for t in bucket) <= max(spread))
    whole = sum(math.exp(p[token]) * (p[token] - q[token]) for token in p)
    assert whole <= shown.most_nats + 1e-9
    assert shown.nats <= shown.most_nats


def test_the_gate_judges_what_the_servers_did_not_tell() -> None:
    # Half of the first's probability is untold, and of what is told the ratio of one is far off.
    first = capture(text((1, logs(t1=0.3, t2=0.2)), (1, logs(t1=0.3, t2=0.2))))
    second = capture(text((1, logs(t1=0.27, t2=0.23)), (1, logs(t1=0.27, t2=0.23))))
    compared = compare(first, second)
    assert compared.mean_kl_nats.value == pytest.approx(0.0036, abs=1e-4)
    assert compared.most_mean_kl_nats == pytest.approx(0.0085, abs=1e-4)
    wide = Thresholds(max_mean_kl_nats=0.005, max_perplexity_rise=1.0)
    (said,) = failures(compared, wide)
    assert said == "mean KL of 0.00366 to 0.00853 nats is above 0.005"


def test_a_divergence_worked_by_hand() -> None:
    shown = divergence(logs(t1=0.5, t2=0.25), logs(t1=0.25, t3=0.5))
    # Shared: token 1. All else is one bucket, of 0.5 and 0.75.
    assert shown.nats == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))
    assert shown.unseen == pytest.approx(0.5)


def test_wilson_s_interval_is_the_published_one() -> None:
    share, low, high = astuple(proportion(8, 10))
    assert (share, round(low, 4), round(high, 4)) == (0.8, 0.4902, 0.9433)
    assert proportion(50, 50).low == pytest.approx(0.9287, abs=1e-4)
    assert proportion(50, 50).high == 1.0
    assert proportion(0, 50).low == 0.0


@given(st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=5), min_size=2, max_size=6))
def test_a_mean_lies_in_its_interval_and_the_interval_in_the_texts(
    texts: list[list[float]],
) -> None:
    mean, low, high = astuple(mean_over_texts(texts))
    means = [sum(values) / len(values) for values in texts]
    assert min(means) - 1e-9 <= low <= high <= max(means) + 1e-9
    assert min(means) - 1e-9 <= mean <= max(means) + 1e-9
    assert astuple(mean_over_texts(texts)) == (mean, low, high)


def test_a_right_copy_passes_and_reads_well() -> None:
    one = capture(
        text((1, logs(t1=0.5, t2=0.4)), (3, logs(t1=0.6, t3=0.2)), name="a"),
        text((2, logs(t1=0.1, t2=0.8)), name="b"),
    )
    same = compare(one, one)
    assert same.top1_agreement.value == 1.0
    assert same.mean_kl_nats == Estimate(0.0, 0.0, 0.0)
    assert same.perplexity_change == Estimate(0.0, 0.0, 0.0)
    assert not any(it.first_difference for it in same.greedy)
    assert list(failures(same, Thresholds(1.0, 0.0, 0.0, 0.0))) == []
    said = list(comparison_lines(same, "one", ()))
    assert said[0] == "one beside one: 3 positions of 2 texts"
    assert said[-2:] == ["  greedy text      the same in all 2, 3 tokens each", "gate: passed"]


def test_every_figure_of_a_worse_model_is_the_one_by_hand() -> None:
    good = capture(
        text((1, logs(t1=0.8, t2=0.2)), greedy=(5, 6, 7)),
        text((2, logs(t1=0.5, t2=0.5)), greedy=(5, 6, 7), name="b"),
    )
    bad = capture(
        text((1, logs(t1=0.2, t2=0.8)), greedy=(5, 9, 7)),
        text((2, logs(t1=0.5, t2=0.5)), greedy=(5, 6, 7), name="b"),
        label="two",
    )
    found = compare(good, bad)
    kl = 0.8 * math.log(4) + 0.2 * math.log(0.25)
    assert found.top1_agreement.value == 0.5
    assert found.mean_kl_nats.value == pytest.approx(kl / 2)
    assert found.p99_kl_nats == pytest.approx(kl)
    assert found.drift_nats.value == pytest.approx(math.log(4) / 2)
    assert found.perplexity_change.value == pytest.approx(1.0)
    assert found.first_perplexity is not None
    assert found.second_perplexity == pytest.approx(2 * found.first_perplexity)
    assert [it.first_difference for it in found.greedy] == [1, None]
    assert [sentence.split(" 0")[0].split(" rose")[0].split(" 5")[0] for sentence in failures(
        found, Thresholds(max_drift_nats=0.5)
    )] == ["top-1 agreement", "mean KL", "perplexity", "drift"]  # fmt: skip
    plain = comparison_as_dict(found, "two", ("x",))
    assert plain["gate"] == {"passed": False, "failures": ["x"]}
    assert plain["greedy"][0] == {"text": "a", "tokens": 3, "first_difference": 1}


def test_other_tokens_are_refused() -> None:
    one, other = capture(text((1, logs(t1=0.5)))), capture(text((2, logs(t2=0.5))))
    with pytest.raises(BenchError, match="were not asked the same tokens"):
        compare(one, other)
    with pytest.raises(BenchError, match="no positions"):
        compare(capture(text()), capture(text()))
