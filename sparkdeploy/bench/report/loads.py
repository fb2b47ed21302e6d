"""Loads: which of them were asked alike, and their figures over the rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.load.plan import Slo
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.report.sections import FAILED, TTFT, Over, median_ttft_s, section_over, waits
from sparkdeploy.bench.report.shown import LOAD, NOTHING, across, with_names
from sparkdeploy.bench.tables import figure, sustained_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.bench.load.record import LoadResult, TurnResult
    from sparkdeploy.bench.record import Cell, SuiteResult
    from sparkdeploy.bench.report.shown import Row, Section, ShownRun

LoadAsked = tuple[object, ...]


def asked_of(suite: SuiteResult) -> LoadAsked | None:
    """Return what two loads must have in common for their figures to be compared.

    None for a load without a rate: it was interrupted in its first.
    """
    loads = suite.loads
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
    rates = [{load.rate_per_s for load in suite.loads} for suite in suites]
    return max(set.intersection(*rates), default=None) if rates else None


def load_section(runs: Sequence[ShownRun], asking: Asking) -> Section | None:
    """Show the runs whose load was asked alike; a note names the others."""
    loaded = alike(runs, asking)
    limits_s = loaded[0][1].loads[0].limits_s if loaded else {}
    is_talk = asking is Asking.CONVERSATIONS
    good = ("Requests done", "a second", _of_load(lambda it: it.completed_per_s))
    if limits_s:
        unit = f"requests a second within {Slo(limits_s)}"
        good = ("Goodput", unit, _of_load(lambda it: it.goodput_per_s))
    over = Over(
        name="conversations" if is_talk else "load",
        x_title=f"{'conversations' if is_talk else 'requests'} a second, as they come",
        # A search comes to rates of many digits.
        x=lambda cell: float(f"{cell.load.rate_per_s:.3g}") if cell.load else 0.0,
        head="{:g}/s".format,
        figures=LOAD_FIGURES,
        drawn=(("Time to first token", "s, median", median_ttft_s), good),
    )
    rated = [(shown, [cell for cell in suite.cells if cell.load]) for shown, suite in loaded]
    groups = tuple(_turn_groups([suite for _, suite in loaded])) if is_talk else ()
    return section_over(over, rated, groups=groups, notes=_load_notes(runs, loaded, asking))


def _of_load(read: Callable[[LoadResult], float | None]) -> Callable[[Cell], float | None]:
    return lambda cell: read(cell.load) if cell.load is not None else None


def _turn_groups(suites: Sequence[SuiteResult]) -> Iterator[tuple[str, list[Row]]]:
    """Yield what each turn waits and finds in the prefix cache, at the highest common rate."""
    rate = common_rate(suites)
    by_run: list[dict[int, TurnResult]] = [
        {turn.turn: turn for load in suite.loads if load.rate_per_s == rate for turn in load.turns}
        for suite in suites
    ]
    at = f"at {rate:.3g}/s" if rate is not None else ""
    for title, text in (
        (
            f"time to first token, s, {at}: median / 95th percentile",
            lambda turn: waits(turn.ttft_s, 1.0, 2),
        ),
        (f"prompt tokens, {at}", lambda turn: figure(turn.prompt_tokens, 0)),
        (f"of them in the prefix cache, %, {at}", _cached),
    ):
        yield title, across(by_run, "turn {}".format, text)


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
        for run in shown.others:
            if suite in run.suites and suite not in shown.run.suites:
                yield f"{shown.name}: from the record {run.run_id}."
    names = [shown.name for shown, _ in loaded]
    for other in runs:
        if other.load(asking) is not None and other.name not in names:
            yield (
                f"{other.name}: its {LOAD} was asked in another way (prompts, arrivals, ramp or "
                f"limits) and is not shown: `sparkdeploy bench show {other.run.run_id}`."
            )


def _text(read: Callable[[LoadResult], str]) -> Callable[[Cell], str]:
    return lambda cell: read(cell.load) if cell.load is not None else NOTHING


LOAD_FIGURES = {
    TTFT: lambda cell: waits(cell.latency.ttft_s, 1.0, 2),
    "longest gaps, ms: 99th percentile": lambda cell: waits(
        cell.latency.gap_s, 1000.0, 0, ("p99",)
    ),
    "requests within the limits, and how many a second": _text(
        lambda it: (
            f"{it.held} of {it.requests}, {figure(it.goodput_per_s, 2)}" if it.limits_s else NOTHING
        )
    ),
    "done a second, and their tok/s": _text(
        lambda it: f"{figure(it.completed_per_s, 2)}, {figure(it.completion_tok_s)}"
    ),
    "at once at the most": _text(lambda it: str(it.most_in_flight)),
    FAILED: _text(lambda it: str(it.failures) if it.failures else NOTHING),
}
