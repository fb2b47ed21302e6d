"""Differences are shown only where the rounds show them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdeploy.bench.compare import DifferenceVerdict, compare
from sparkdeploy.bench.record import Cell, RoundResult, Run, SuiteResult
from sparkdeploy.bench.tables import comparison_lines, list_lines, run_lines
from tests.unit.bench.runs import sample_run


def run_of(speeds: dict[str, list[float]], *, run_id: str = "a", prompts: str = "p") -> Run:
    """A run of suite five with these end-to-end speeds by prompt and round."""
    cells = tuple(
        Cell(
            name,
            1,
            64,
            rounds=tuple(
                RoundResult(number, 1.0, 1, 0, 9, 64, speed, None, None)
                for number, speed in enumerate(values, 1)
            ),
        )
        for name, values in speeds.items()
    )
    suite = SuiteResult("five", prompts, 3, 1, cells=cells)
    return replace(sample_run(), run_id=run_id, suites=(suite,))


def test_a_run_does_not_differ_from_itself() -> None:
    run = sample_run()

    comparison = compare(run, run)

    assert comparison.differences
    assert {item.verdict for item in comparison.differences} == {DifferenceVerdict.NONE}
    assert {item.verdict for item in comparison.overall} == {DifferenceVerdict.NONE}
    assert comparison.changed == ()
    assert comparison.notes == ()


def test_a_clear_gain_is_shown_with_its_interval() -> None:
    comparison = compare(
        run_of({"qa": [28.2, 28.3, 28.4]}), run_of({"qa": [51.1, 51.3, 51.5]}, run_id="b")
    )

    (item,) = comparison.differences
    assert item.verdict is DifferenceVerdict.HIGHER
    assert item.relative == pytest.approx(23.0 / 28.3)
    assert item.difference.low95 is not None
    assert 22 < item.difference.low95 < 23.0


def test_noise_is_no_difference() -> None:
    comparison = compare(run_of({"qa": [50, 52, 51]}), run_of({"qa": [51.5, 50, 52]}))

    assert comparison.differences[0].verdict is DifferenceVerdict.NONE
    assert any("no difference shown" in line for line in comparison_lines(comparison))


def test_drift_that_both_runs_share_does_not_hide_a_difference() -> None:
    """Pairing by round takes the common warm-up out; unpaired intervals would overlap."""
    comparison = compare(run_of({"qa": [40, 45, 50]}), run_of({"qa": [41, 46.1, 50.9]}))

    assert comparison.differences[0].verdict is DifferenceVerdict.HIGHER


def test_one_round_shows_nothing() -> None:
    comparison = compare(run_of({"qa": [28.0]}), run_of({"qa": [51.0]}))

    assert comparison.differences[0].verdict is DifferenceVerdict.UNKNOWN


def test_all_prompts_together_are_a_ratio_by_round() -> None:
    base = run_of({"qa": [10, 10, 10], "math": [100, 100, 100]})
    other = run_of({"qa": [11, 11.1, 10.9], "math": [110, 111, 109]})

    (overall,) = compare(base, other).overall

    assert overall.cells == 2
    assert overall.ratio == pytest.approx(1.1, abs=0.001)
    assert overall.verdict is DifferenceVerdict.HIGHER


def test_other_prompts_are_not_compared() -> None:
    comparison = compare(run_of({"qa": [1, 1]}), run_of({"qa": [2, 2]}, prompts="q"))

    assert comparison.differences == ()
    assert comparison.notes == ("five: the prompts differ",)


def test_cells_and_suites_of_one_run_only_are_named() -> None:
    comparison = compare(
        run_of({"qa": [1, 1], "math": [1, 1]}), run_of({"qa": [1, 1], "json": [2, 2]})
    )
    assert comparison.notes == ("five: 2 cells are in one of the runs only",)

    alone = replace(sample_run(), suites=())
    assert "sweep: is in one of the runs only" in compare(sample_run(), alone).notes


def test_what_made_the_runs_is_compared_too() -> None:
    base, other = sample_run("baseline"), sample_run("v2")

    changed = compare(base, other).changed

    assert "recipe.name: baseline -> v2" in changed
    assert not [line for line in changed if line.startswith("machine")]


def test_a_comparison_reads_well() -> None:
    lines = list(comparison_lines(compare(sample_run("baseline", speed=28.3), sample_run("v2"))))

    assert lines[0] == "20261121T090000Z-v2 against 20261121T090000Z-baseline"
    assert "five, tok/s end to end" in lines
    assert any(line.startswith("  all 5") and line.endswith("higher") for line in lines)


def test_a_run_reads_well() -> None:
    lines = list(run_lines(sample_run()))

    assert "  recipe: v2 (abababababab)" in lines
    assert any(line.startswith("  qa") and "90% 60%" in line for line in lines)
    assert any("4 requests failed" in line or "requests failed" in line for line in lines)
    assert any("llama-benchy 0.4.0" in line for line in lines)
    assert any("not finished" in line for line in lines)
    assert max(map(len, lines)) <= 110


def test_an_empty_list_says_how_to_begin() -> None:
    assert list(list_lines([])) == ["no runs are kept; `sparkdeploy bench` makes one"]
