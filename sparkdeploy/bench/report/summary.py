"""The first screen: which recipe is how much faster at what, and what it takes of the machine."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.compare import Side, compare
from sparkdeploy.bench.report.chart import LOAD, change, figure, plottable
from sparkdeploy.bench.report.decisions import Pair, decisions
from sparkdeploy.bench.report.load_decisions import cache_hits
from sparkdeploy.bench.report.quality import quality_notes, quality_rows, quality_verdict
from sparkdeploy.bench.report.table import NOTHING, Row, RowGroup, Table, run_columns
from sparkdeploy.bench.variation import DifferenceVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.bench.compare import RunComparison
    from sparkdeploy.bench.record import Run
    from sparkdeploy.bench.report.chart import ShownRun
    from sparkdeploy.bench.report.decisions import Decision
    from sparkdeploy.bench.variation import RatioEstimate

FASTER, SLOWER = "faster", "slower"
UNKNOWN = "not judged"


@dataclass(frozen=True, slots=True)
class Best:
    """The answer to one question: the first by its mean, and how sure that is."""

    title: str
    told: str
    name: str
    series: int
    value: str
    beside: str
    """Against the second, in words."""
    cost: str
    """What the first says and takes: its quality and its memory, in words."""


@dataclass(frozen=True, slots=True)
class FirstScreen:
    best: tuple[Best, ...]
    table: Table
    notes: tuple[str, ...]


def summary_of(runs: Sequence[ShownRun], known: Sequence[Side]) -> FirstScreen | None:
    """Return None when no run has a figure that decides anything."""
    # The shown one is the newest: what it measured is compared.
    sides = [Side(shown.name, (*shown.others, shown.run)) for shown in runs]
    asked = tuple(decisions(runs, known))
    if not asked:
        return None
    best = tuple(found for item in asked if (found := _best(item, runs, sides, known)) is not None)
    compared = [compare(sides[0], other, known) for other in sides[1:]]
    rows = tuple(_row(item, sides, compared) for item in asked)
    beside = (*quality_rows(runs), *_machine_rows(runs))
    groups = (RowGroup("", rows), RowGroup("", beside))
    against = f", against {runs[0].name}" if len(runs) > 1 else ""
    table = Table(f"By decision{against}", "decision", run_columns(runs), groups)
    notes = (*_notes(sides, compared), *_load_notes(asked), *quality_notes(runs))
    return FirstScreen(best, table, notes)


def _best(
    item: Decision, runs: Sequence[ShownRun], sides: Sequence[Side], known: Sequence[Side]
) -> Best | None:
    values = [(value, at) for at, side in enumerate(sides) if (value := _value(item, side.runs))]
    if not values:
        return None
    order = sorted(values, reverse=not item.lower_is_better)
    value, first = order[0]
    beside = "no other run has this"
    if len(order) > 1:
        second = order[1][1]
        base, other = sides[second], sides[first]
        estimate = _estimate(item, Pair(base, other, compare(base, other, known)))
        beside = _against(estimate, item, runs[second].name)
    shown = runs[first]
    value_told, cost = _digits(item, value), _cost(runs, shown)
    return Best(item.title, item.told, shown.name, shown.series, value_told, beside, cost)


def _cost(runs: Sequence[ShownRun], shown: ShownRun) -> str:
    free = _free_memory(shown.run)
    said = [f"quality {quality_verdict(runs, shown)}"]
    return ", ".join([*said, f"{free} GiB free at least"] if free != NOTHING else said)


def _value(item: Decision, runs: Iterable[Run]) -> float | None:
    """Return the mean over runs of each one's mean over the cells; None where one lacks them."""
    means = [mean for run in runs if (mean := item.read(run)) is not None]
    return statistics.fmean(means) if means else None


def _estimate(item: Decision, pair: Pair) -> RatioEstimate | None:
    found = item.judge(pair)
    # A damaged record may say anything.
    return found if found is not None and plottable(found.ratio) else None


def _row(item: Decision, sides: Sequence[Side], compared: Sequence[RunComparison]) -> Row:
    cells = [_digits(item, _value(item, sides[0].runs))]
    for side, found in zip(sides[1:], compared, strict=True):
        value = _digits(item, _value(item, side.runs))
        estimate = _estimate(item, Pair(sides[0], side, found))
        cells.append(value if estimate is None else f"{value}: {_words(estimate, item)}")
    return Row(f"{item.title}: {item.told}", tuple(cells))


def _digits(item: Decision, value: float | None) -> str:
    return figure(value, item.digits)


def _words(estimate: RatioEstimate, item: Decision) -> str:
    return f"{_changed(estimate)}, {_verdict(estimate, item)}"


def _changed(estimate: RatioEstimate) -> str:
    if estimate.low95 is None or estimate.high95 is None:
        return change(estimate.ratio - 1)
    low, high = change(estimate.low95 - 1), change(estimate.high95 - 1)
    return f"{change(estimate.ratio - 1)} ({low} to {high})"


def _verdict(estimate: RatioEstimate, item: Decision) -> str:
    match estimate.verdict:
        case DifferenceVerdict.UNKNOWN:
            return UNKNOWN
        case DifferenceVerdict.NONE:
            return "no difference shown"
        case DifferenceVerdict.HIGHER:
            return SLOWER if item.lower_is_better else FASTER
        case DifferenceVerdict.LOWER:
            return FASTER if item.lower_is_better else SLOWER


def _against(estimate: RatioEstimate | None, item: Decision, second: str) -> str:
    if estimate is None:
        return f"before {second}, whose conditions are not the same"
    return f"{_changed(estimate)} against {second}: {_verdict(estimate, item)}"


def _machine_rows(runs: Sequence[ShownRun]) -> Iterator[Row]:
    said = (
        ("Agents, % of prompts found in the prefix cache", list(map(cache_hits, runs))),
        ("KV cache, tokens", [_cache_tokens(shown.run) for shown in runs]),
        ("Least free memory, GiB", [_free_memory(shown.run) for shown in runs]),
    )
    for head, cells in said:
        if set(cells) != {NOTHING}:
            yield Row(head, tuple(cells))


def _cache_tokens(run: Run) -> str:
    engine = run.origin.engine
    return figure(engine.kv_cache_tokens if engine is not None else None, 0)


def _free_memory(run: Run) -> str:
    watches = [cell.machine for suite in run.suites for cell in suite.cells]
    floors = [it.memory_floor_bytes for it in watches if it is not None]
    known = [floor for floor in floors if floor and plottable(floor)]
    return figure(min(known) / 2**30) if known else NOTHING


def _notes(sides: Sequence[Side], compared: Sequence[RunComparison]) -> Iterator[str]:
    counts = ", ".join(f"{side.label} {len(side.runs)}" for side in sides)
    yield f"Runs of each: {counts}."
    if not compared:
        return
    witnesses = compared[0].variation_from
    if witnesses:
        yield f"How much runs of the same differ is seen in the runs of {', '.join(witnesses)}."
    else:
        yield (
            "How much two runs of the same differ is not known on this machine, so no difference "
            "is judged: three to five runs under each label are a comparison."
        )
    differ = {note for found in compared for note in found.notes if note.endswith("differ")}
    yield from (f"Not compared: {note}." for note in sorted(differ))


def _load_notes(asked: Sequence[Decision]) -> Iterator[str]:
    told = [item.told for item in asked if f"(bench {LOAD}, " in item.told]
    if not told:
        return
    yield (
        "Rows that name bench load are of an open loop: whoever comes waits for nobody. All others "
        "are of a closed loop, and their figures are not to be held against those."
    )
    if any(words.startswith("highest rate") for words in told):
        yield "A highest rate lies between two that were tried; it is told, and not judged."
