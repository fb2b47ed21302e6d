"""Which models fit together and which go for another, as laws and against every set there is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.gateway.fit import ModelFit, StackFit
from sparkdeploy.gateway.report import fit_lines
from sparkdeploy.gateway.stack import Keep
from tests.examples import examples

KEEPS = st.sampled_from(get_args(Keep))
POOLS = ("spark-1", "spark-2")
SIZES = st.integers(0, 12)


@st.composite
def stacks(draw: st.DrawFn) -> StackFit:
    count = draw(st.integers(1, 8))
    models = tuple(
        ModelFit(
            f"m{number}",
            draw(KEEPS),
            {pool: draw(SIZES) for pool in POOLS[: draw(st.integers(1, 2))]},
            {pool: draw(st.integers(0, 3)) for pool in POOLS},
            draw(st.integers(0, 900) | st.none()),
        )
        for number in range(count)
    )
    return StackFit({pool: draw(st.integers(0, 30)) for pool in POOLS}, models)


def subsets(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    every = sorted(names)
    return chain.from_iterable(combinations(every, count) for count in range(len(every) + 1))


@st.composite
def wishes(draw: st.DrawFn) -> tuple[StackFit, set[str], str]:
    """A stack, which of its models run, and the one that is asked for."""
    fit = draw(stacks())
    names = [it.name for it in fit.models]
    return fit, draw(st.sets(st.sampled_from(names))), draw(st.sampled_from(names))


def cost_of(fit: StackFit, names: Iterable[str], cost_s: dict[str, int]) -> tuple[float, float]:
    """What ending models costs: of those that are kept idle, and of those only asked for."""
    idle, asked = (
        sum(cost_s.get(it, fit[it].start_s or 0.0) for it in sorted(names) if fit[it].keep == keep)
        for keep in ("idle", "request")
    )
    return idle, asked


@settings(max_examples=examples(300), deadline=None)
@given(
    wishes(), st.dictionaries(st.sampled_from([f"m{it}" for it in range(8)]), st.integers(0, 99))
)
def test_the_cheapest_set_that_is_enough_goes(
    wish: tuple[StackFit, set[str], str], cost_s: dict[str, int]
) -> None:
    fit, running, wanted = wish
    found = fit.cheapest_eviction(running, wanted, cost_s)
    may_go = {it for it in running - {wanted} if fit[it].keep != "always"}
    enough = [it for it in subsets(may_go) if fit.fits(running - set(it), wanted)]
    if found is None:
        assert enough == []
        return
    assert set(found) <= may_go
    assert tuple(sorted(found)) in enough
    assert cost_of(fit, found, cost_s) == min(cost_of(fit, it, cost_s) for it in enough)
    # Nobody goes for nothing.
    assert not any(fit.fits(running - set(found) | {it}, wanted) for it in found) or not any(
        cost_of(fit, found, cost_s)
    )
    if fit.is_together(running):
        assert fit.is_together(running - set(found) | {wanted})


@settings(max_examples=examples(200), deadline=None)
@given(stacks())
def test_what_fits_together_is_listed_whole_and_once(fit: StackFit) -> None:
    names = [it.name for it in fit.models]
    fitting = {it for it in subsets(names) if it and fit.is_together(it)}
    listed = [tuple(sorted(it)) for it in fit.largest_sets(10_000) if it]
    assert len(listed) == len(set(listed))
    assert set(listed) == {it for it in fitting if not any(set(it) < set(more) for more in fitting)}
    assert [*fit.excluded()] == [
        pair
        for pair in combinations(names, 2)
        if pair not in fitting and {(pair[0],), (pair[1],)} <= fitting
    ]


@settings(max_examples=examples(100), deadline=None)
@given(wishes())
def test_fewer_models_fit_wherever_more_do(wish: tuple[StackFit, set[str], str]) -> None:
    fit, running, wanted = wish
    if fit.fits(running, wanted):
        assert all(fit.fits(set(it), wanted) for it in subsets(running))
        assert fit.cheapest_eviction(running, wanted) == ()


def model(name: str, size: int, keep: Keep = "idle", start_s: float | None = 10.0) -> ModelFit:
    return ModelFit(name, keep, {"spark": size}, {"spark": 4}, start_s)


def test_the_floor_counts_once_and_the_largest_does() -> None:
    fit = StackFit({"spark": 24}, (model("a", 10), model("b", 10)))
    assert fit.fits({"a"}, "b")
    wider = ModelFit("c", "idle", {"spark": 10}, {"spark": 5})
    assert not StackFit({"spark": 24}, (model("a", 10), wider)).fits({"a"}, "c")
    assert not StackFit({"spark": 24}, (model("a", 10), wider)).fits({"c"}, "a")


def test_what_runs_only_while_it_is_asked_for_goes_first() -> None:
    fit = StackFit(
        {"spark": 24}, (model("a", 10, "request", 900.0), model("b", 10), model("c", 10))
    )
    assert fit.cheapest_eviction({"a", "b"}, "c") == ("a",)


@pytest.mark.parametrize("cost", [0.0, -5.0, math.nan, math.inf])
def test_strange_costs_evict_nobody_for_nothing(cost: float) -> None:
    fit = StackFit({"spark": 34}, tuple(model(it, 10) for it in "abcd"))
    found = fit.cheapest_eviction({"a", "b", "c"}, "d", dict.fromkeys("abc", cost))
    assert found is not None
    assert len(found) == 1


def test_names_of_others_and_pools_of_others_change_nothing() -> None:
    fit = StackFit({"spark": 24}, (model("a", 20), ModelFit("b", "idle", {"other": 1})))
    assert fit.fits({"somebody-else"}, "a")
    assert not fit.fits(set(), "b"), "a pool of which nothing is usable"
    assert fit.fits({"b"}, "a")
    assert fit.cheapest_eviction(set(), "b") is None
    assert StackFit({}, (ModelFit("x", "idle", {}),)).fits(set(), "x")


def test_what_is_printed_of_many_models_is_bounded() -> None:
    lines = [*fit_lines(StackFit({"spark": 24}, tuple(model(f"m{it}", 15) for it in range(32))))]
    assert len(lines) < 50
    assert lines[-1] == "and more: --json has them"


def test_thirty_two_models_are_decided_at_once() -> None:
    fit = StackFit({"spark": 165}, tuple(model(f"m{it:02}", 10, start_s=it) for it in range(32)))
    running = {f"m{it:02}" for it in range(16)}
    assert fit.cheapest_eviction(running, "m31") == ("m00",)
    tight = StackFit({"spark": 14}, fit.models)
    assert len(tight.cheapest_eviction(running, "m31") or ()) == 16, "all are enough, at least"
    assert len([*fit.largest_sets(50)]) == 50
