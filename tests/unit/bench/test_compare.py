"""Differences are shown only where the rounds show them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sparkdeploy.bench.compare import (
    DifferenceVerdict,
    Side,
    compare,
    ratio_of,
    sides_of,
    spread_of,
    verdict_of,
)
from sparkdeploy.bench.figures import summarise
from sparkdeploy.bench.record import Cell, MachineOrigin, Run, SuiteResult
from sparkdeploy.bench.tables import comparison_lines
from tests.fakes.bench_runs import loaded_run, sample_run
from tests.unit.plain import plain_lines


def run_of(speeds: dict[str, list[float]], *, run_id: str = "a", prompts: str = "p") -> Run:
    """A run of suite five with these end-to-end speeds by prompt and round."""
    cells = tuple(
        Cell(name, 1, 64, statistics={"end_to_end_tok_s": found})
        for name, values in speeds.items()
        if (found := summarise(values)) is not None
    )
    suite = SuiteResult("five", prompts, 3, 1, cells=cells)
    return replace(sample_run(), run_id=run_id, suites=(suite,))


def side(*runs: Run, label: str = "v2") -> Side:
    return Side(label, runs)


def level(speed: float) -> Run:
    """A run of one prompt, three like rounds."""
    return run_of({"qa": [speed] * 3}, run_id=f"at {speed}")


def test_a_side_does_not_differ_from_itself() -> None:
    same = side(sample_run(), sample_run())
    comparison = compare(same, same)
    assert comparison.differences
    assert {verdict_of(item.estimate) for item in comparison.differences} == {
        DifferenceVerdict.NONE
    }
    assert {verdict_of(item.estimate) for item in comparison.overall} == {DifferenceVerdict.NONE}
    assert comparison.changed == ()
    assert comparison.notes == ()


def test_a_clear_gain_is_shown_with_its_interval() -> None:
    base, other = side(level(28.2), level(28.4)), side(level(51.1), level(51.5))
    (item,) = compare(base, other).differences
    assert verdict_of(item.estimate) is DifferenceVerdict.HIGHER
    assert item.other / item.base == pytest.approx(51.3 / 28.3)
    assert item.estimate.low is not None
    assert item.estimate.value is not None
    assert 1.75 < item.estimate.low < item.estimate.value < 1.82
    assert item.deviation == pytest.approx(0.0053, abs=0.0003)


def test_runs_that_differ_among_themselves_show_no_difference() -> None:
    comparison = compare(side(level(50), level(52)), side(level(52.5), level(51)))
    assert verdict_of(comparison.differences[0].estimate) is DifferenceVerdict.NONE
    assert any("no difference shown" in line for line in plain_lines(comparison_lines(comparison)))


def test_one_run_a_side_shows_nothing_however_quiet_its_rounds_are() -> None:
    comparison = compare(side(level(50.0)), side(level(51.0)))
    (item,) = comparison.differences
    assert verdict_of(item.estimate) is DifferenceVerdict.UNKNOWN
    assert (item.estimate.low, item.deviation) == (None, None)
    said = plain_lines(comparison_lines(comparison))
    assert "how much two runs of the same differ is not known" in said[1]
    assert any("+2.0%  not known: one run a side" in line for line in said)


def test_one_run_a_side_is_held_against_the_variation_of_others_on_that_machine() -> None:
    others = side(level(100), level(101), level(99), level(100.5), label="baseline")
    near = compare(side(level(50.0)), side(level(50.6), label="b"), [others])
    far = compare(side(level(50.0)), side(level(60.0), label="b"), [others])
    assert verdict_of(near.differences[0].estimate) is DifferenceVerdict.NONE
    assert verdict_of(far.differences[0].estimate) is DifferenceVerdict.HIGHER
    assert far.variation_from == ("baseline",)
    assert "seen in the runs of baseline" in plain_lines(comparison_lines(far))[1]
    origin = replace(others.newest.origin, machine=MachineOrigin("another"))
    elsewhere = [replace(run, origin=origin) for run in others.runs]
    alone = compare(side(level(50.0)), side(level(60.0), label="b"), [side(*elsewhere)])
    assert alone.variation_from == ()


def test_all_prompts_together_are_a_ratio_by_run() -> None:
    base = side(
        run_of({"qa": [10], "math": [100]}, run_id="1"),
        run_of({"qa": [10.1], "math": [101]}, run_id="2"),
    )
    other = side(
        run_of({"qa": [11], "math": [110]}, run_id="3"),
        run_of({"qa": [11.1], "math": [111]}, run_id="4"),
    )
    (overall,) = compare(base, other).overall
    assert overall.prompt == "all 2"
    assert overall.estimate.value == pytest.approx(1.1, abs=0.001)
    assert verdict_of(overall.estimate) is DifferenceVerdict.HIGHER


def test_runs_of_a_label_that_were_made_otherwise_are_left_out() -> None:
    newer, older = sample_run(), sample_run()
    assert older.origin.recipe is not None
    recipe = replace(older.origin.recipe, fingerprint="0" * 64)
    older = replace(older, run_id="0", origin=replace(older.origin, recipe=recipe))
    same = replace(newer, run_id="1", origin=replace(newer.origin, url="http://127.0.0.1:9"))
    (found,) = sides_of([newer, older, same])
    assert [run.run_id for run in found.runs] == ["1", newer.run_id]


def test_cells_and_suites_of_one_run_only_are_named() -> None:
    comparison = compare(
        side(run_of({"qa": [1, 1], "math": [1, 1]})), side(run_of({"qa": [1, 1], "json": [2, 2]}))
    )
    assert comparison.notes == ("five: 2 cells are in one of the runs only",)
    alone = side(replace(sample_run(), suites=()))
    assert "sweep: is in one of the runs only" in compare(side(sample_run()), alone).notes
    run = loaded_run("v2", speed=50.0)
    load = run.suites[-2]
    limited = [replace(it, load=replace(it.load, limits_s={"ttft": 1.0})) for it in load.cells]  # type: ignore[type-var]  # each has one
    other = replace(run, suites=(replace(load, cells=tuple(limited)),))
    assert "load: prompts or limits differ" in compare(side(run), side(other)).notes


@pytest.mark.parametrize(("runs", "deviation"), [(2, 0.005), (3, 0.01), (5, 0.02)])
def test_like_servers_are_called_different_in_one_of_twenty(runs: int, deviation: float) -> None:
    simulated, claimed = 600, 0
    dice = random.Random(runs)
    for _ in range(simulated):
        one, other = ([dice.gauss(0.0, deviation) for _ in range(runs)] for _ in range(2))
        estimate = ratio_of(one, other, spread_of([one, other]))
        claimed += verdict_of(estimate) is not DifferenceVerdict.NONE
    # Six standard deviations of a binomial beyond 5 %: found only where the claim is false.
    assert 0.05 - 6 * 0.0089 <= claimed / simulated <= 0.05 + 6 * 0.0089


def test_suites_of_a_label_are_compared_though_each_is_a_run_of_its_own() -> None:
    def side(label: str, speed: float) -> Side:
        whole = loaded_run(label, speed=speed)
        five, *_, load, talk = whole.suites
        alone = [
            replace(whole, run_id=str(number), suites=(suite,))
            for number, suite in enumerate((talk, load, five))
        ]
        return Side(label, tuple(alone))

    found = compare(side("a", 30.0), side("b", 50.0))
    assert {item.suite for item in found.differences} == {"five", "load", "agents"}
    assert found.notes == ()
