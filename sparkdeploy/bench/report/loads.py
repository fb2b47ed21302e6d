"""Loads: which of them were asked alike, and their figures over the rate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.load.plan import Slo
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.load.tables import sustained_text
from sparkdeploy.bench.report.sections import (
    FAILED,
    TTFT,
    Over,
    ends,
    median_ttft_s,
    section_over,
    ttft,
    waits,
)
from sparkdeploy.bench.report.table import LOAD, NOTHING, across, rate_of, with_names
from sparkdeploy.bench.tables import figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sparkdeploy.bench.load.record import LoadResult, TurnResult
    from sparkdeploy.bench.record import Cell, SuiteResult
    from sparkdeploy.bench.report.sections import Figures
    from sparkdeploy.bench.report.table import Row, Section, ShownRun

LoadAsked = tuple[object, ...]


def asked_of(suite: SuiteResult) -> LoadAsked | None:
    """Return what two loads must have in common for their figures to be compared.

    None for a load without a rate: it was interrupted in its first.
    """
    loads = [cell.load for cell in suite.cells if cell.load is not None]
    if not loads:
        return None
    share = suite.sustained.wanted_share if suite.sustained is not None else None
    limits = tuple(sorted(loads[0].limits_s.items()))
    return suite.asking, suite.prompts, loads[0].arrivals, loads[0].ramp_s, limits, share


def alike(runs: Sequence[ShownRun], asking: Asking) -> list[tuple[ShownRun, SuiteResult]]:
    """Return the runs whose load was asked as the first one's was, each with its load."""
    loaded = [(shown, suite) for shown in runs if (suite := shown.load(asking)) is not None]
    asked = next((asked for _, suite in loaded if (asked := asked_of(suite)) is not None), None)
    return [pair for pair in loaded if asked is not None and asked_of(pair[1]) == asked]


def common_rate(suites: Sequence[SuiteResult]) -> float | None:
    """Return the highest rate that all have."""
    rates = [{rate_of(cell) for cell in suite.cells if cell.load is not None} for suite in suites]
    return max(set.intersection(*rates), default=None) if rates else None


def load_section(runs: Sequence[ShownRun], asking: Asking) -> Section | None:
    """Show the runs whose load was asked alike; a note names the others."""
    loaded = alike(runs, asking)
    limits_s = _limits_s(loaded[0][1]) if loaded else {}
    is_talk = asking is Asking.CONVERSATIONS
    good = ("Requests done", "a second", partial(_of_load, read=lambda it: it.completed_per_s))
    if limits_s:
        unit = f"requests a second within {Slo(limits_s)}"
        good = ("Goodput", unit, partial(_of_load, read=lambda it: it.goodput_per_s))
    over = Over(
        name="conversations" if is_talk else "load",
        x_title=f"{'conversations' if is_talk else 'requests'} a second, as they come",
        x=lambda cell: float(f"{rate_of(cell):.3g}"),  # a search comes to rates of many digits
        head="{:g}/s".format,
        figures=LOAD_FIGURES,
        drawn=(("Time to first token", "s, median", median_ttft_s), good),
    )
    cells = [(shown, sorted(suite.cells, key=rate_of)) for shown, suite in loaded]
    rated = [(shown, [cell for cell in found if cell.load is not None]) for shown, found in cells]
    groups = _turn_groups([suite for _, suite in loaded]) if is_talk else ()
    return section_over(over, rated, groups=groups, notes=_load_notes(runs, loaded, asking))


def _limits_s(suite: SuiteResult) -> Mapping[str, float]:
    return next((cell.load.limits_s for cell in suite.cells if cell.load is not None), {})


def _of_load(cell: Cell, read: Callable[[LoadResult], float | None]) -> float | None:
    return read(cell.load) if cell.load is not None else None


def _turn_groups(suites: Sequence[SuiteResult]) -> Iterator[tuple[str, list[Row]]]:
    """Yield what each turn waits and finds in the prefix cache, at the highest common rate."""
    rate = common_rate(suites)
    by_run: list[dict[int, TurnResult]] = [
        {
            turn.turn: turn
            for cell in suite.cells
            if rate_of(cell) == rate and cell.load is not None
            for turn in cell.load.turns
        }
        for suite in suites
    ]
    at = f"at {rate:.3g}/s" if rate is not None else ""
    for title, say in (
        (
            f"time to first token, s, {at}: median / 95th percentile",
            lambda turn: ends(turn.ttft_s and (turn.ttft_s.p50, turn.ttft_s.p95), 1, 2),
        ),
        (f"prompt tokens, {at}", lambda turn: figure(turn.prompt_tokens, 0)),
        (f"of them in the prefix cache, %, {at}", _cached),
    ):
        yield title, across(by_run, "turn {}".format, say)


def _cached(turn: TurnResult) -> str:
    if turn.cached_tokens is None or not turn.prompt_tokens:
        return NOTHING
    return figure(100 * turn.cached_tokens / turn.prompt_tokens, 0)


def _load_notes(
    runs: Sequence[ShownRun], loaded: Sequence[tuple[ShownRun, SuiteResult]], asking: Asking
) -> Iterator[str]:
    for shown, suite in loaded:
        if suite.sustained is not None:
            yield f"{shown.name}: {sustained_text(suite.sustained)}."
    yield from with_names((it.name, f"{note}.") for it, suite in loaded for note in suite.notes)
    for shown, suite in loaded:
        if suite not in shown.run.suites:
            run = next(run for run in shown.others if suite in run.suites)
            yield f"{shown.name}: from the record {run.run_id}."
    names = [shown.name for shown, _ in loaded]
    for other in runs:
        if other.load(asking) is not None and other.name not in names:
            yield (
                f"{other.name}: its {LOAD} was asked in another way (prompts, arrivals, ramp or "
                f"limits) and is not shown: `sparkdeploy bench show {other.run.run_id}`."
            )


def _on_load(say: Callable[[LoadResult], str]) -> Callable[[Cell], str]:
    return lambda cell: say(cell.load) if cell.load is not None else NOTHING


LOAD_FIGURES: Figures = {
    TTFT: ttft,
    "longest gaps, ms: 99th percentile": partial(
        waits, kind="gap_s", factor=1000.0, digits=0, names=("p99",)
    ),
    "requests within the limits, and how many a second": _on_load(
        lambda it: (
            f"{it.held} of {it.requests}, {figure(it.goodput_per_s, 2)}" if it.limits_s else NOTHING
        )
    ),
    "done a second, and their tok/s": _on_load(
        lambda it: f"{figure(it.completed_per_s, 2)}, {figure(it.completion_tok_s)}"
    ),
    "at once at the most": _on_load(lambda it: str(it.most_in_flight)),
    FAILED: _on_load(lambda it: str(it.failures) if it.failures else NOTHING),
}
