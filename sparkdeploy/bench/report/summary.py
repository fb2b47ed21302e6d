"""The first screen: which recipe is how much faster at what, and what it takes of the machine."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.compare import Side, compare
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.report.chart import change, condition, figure, plottable
from sparkdeploy.bench.report.table import NOTHING, Row, RowGroup, Table, run_columns
from sparkdeploy.bench.variation import DifferenceVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkdeploy.bench.compare import FigureDifference, RunComparison
    from sparkdeploy.bench.record import Cell, Run
    from sparkdeploy.bench.report.chart import ShownRun
    from sparkdeploy.bench.variation import RatioEstimate

    Asked = Cell | FigureDifference

AGENT = "agent"
FASTER, SLOWER = "faster", "slower"
UNKNOWN = "not judged"


@dataclass(frozen=True, slots=True)
class Decision:
    """A question a reader has, and the cells and the figure that answer it."""

    title: str
    told: str
    """The condition and what is counted."""
    suite: str
    metric: str
    is_asked: Callable[[Asked], bool]
    lower_is_better: bool = False


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


@dataclass(frozen=True, slots=True)
class FirstScreen:
    best: tuple[Best, ...]
    table: Table
    notes: tuple[str, ...]


def summary_of(runs: Sequence[ShownRun], known: Sequence[Side]) -> FirstScreen | None:
    """Return None when no run has a figure that decides anything."""
    sides = _sides(runs, known)
    decisions = tuple(_decisions(runs))
    if not decisions:
        return None
    best = tuple(
        found for item in decisions if (found := _best(item, runs, sides, known)) is not None
    )
    compared = [compare(sides[0], other, known) for other in sides[1:]]
    rows = tuple(_row(item, sides, compared) for item in decisions)
    groups = (RowGroup("", rows), RowGroup("", tuple(_machine_rows(runs))))
    against = f", against {runs[0].name}" if len(runs) > 1 else ""
    table = Table(f"By decision{against}", "decision", run_columns(runs), groups)
    return FirstScreen(best, table, tuple(_notes(sides, compared)))


def _sides(runs: Sequence[ShownRun], known: Sequence[Side]) -> list[Side]:
    """Return all runs of a shown run's label, unless two of them are shown apart."""
    found = []
    for shown in runs:
        side = next((item for item in known if shown.run in item.runs), None)
        shared = side is not None and sum(other.run in side.runs for other in runs) > 1
        own = (shown.run,) if side is None or shared else side.runs
        found.append(Side(shown.name, own))
    return found


def _decisions(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    if any(shown.cells("five") for shown in runs):
        told = "five prompt classes, tok/s end to end"
        yield Decision("One user", told, "five", "end_to_end_tok_s", _alone)
    yield from _swept(runs)
    if any(cell.prompt == AGENT for shown in runs for cell in shown.cells("decode")):
        told = "an agent's turns, tok/s decoding"
        yield Decision("Agents", told, "decode", "stream_decode_tok_s", _agent)


def _swept(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    """Ask at the most streams, and at the longest context, that all swept runs have."""
    tables = [
        {
            (cell.concurrency, cell.context_tokens or 0)
            for cell in cells
            if plottable(cell.concurrency) and plottable(cell.context_tokens or 0)
        }
        for shown in runs
        if (cells := shown.cells("sweep"))
    ]
    common = set.intersection(*tables) if tables else set()
    if not common:
        return
    streams, context = max(common, key=lambda key: (key[0], -key[1]))
    if streams > 1:
        told = f"{streams} at once with {condition(context)} each, tok/s of all together"
        yield Decision("Several users", told, "sweep", "decode_tok_s", _at(streams, context))
    alone = [tokens for count, tokens in common if count == 1]
    if not alone or max(alone) == min(tokens for _, tokens in common):
        return
    longest = max(alone)
    told = f"{condition(longest)}, one request"
    asked = _at(1, longest)
    yield Decision("Long context", f"{told}, tok/s decoding", "sweep", "stream_decode_tok_s", asked)
    waited = f"{told}, s to the first token"
    yield Decision("Long context, wait", waited, "sweep", "ttft_p50_s", asked, lower_is_better=True)


def _alone(cell: Asked) -> bool:
    return cell.concurrency == 1


def _agent(cell: Asked) -> bool:
    return cell.prompt == AGENT and cell.concurrency == 1


def _at(streams: int, context: int) -> Callable[[Asked], bool]:
    return lambda cell: (cell.concurrency, cell.context_tokens or 0) == (streams, context)


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
        estimate = _estimate(item, compare(sides[second], sides[first], known))
        beside = _against(estimate, item, runs[second].name)
    shown = runs[first]
    return Best(item.title, item.told, shown.name, shown.series, _digits(item, value), beside)


def _value(item: Decision, runs: Iterable[Run]) -> float | None:
    """Return the mean over runs of each one's mean over the cells; None where one lacks them."""
    means = [mean for run in runs if (mean := _mean(item, run)) is not None]
    return statistics.fmean(means) if means else None


def _mean(item: Decision, run: Run) -> float | None:
    found = run.suite(item.suite)
    is_closed = found is not None and found.asking is Asking.CLOSED_LOOP
    cells = [it for it in found.cells if item.is_asked(it)] if found and is_closed else []
    told = [cell.statistics.get(item.metric) for cell in cells]
    means = [summary.mean for summary in told if summary is not None and plottable(summary.mean)]
    return statistics.fmean(means) if means and len(means) == len(cells) else None


def _estimate(item: Decision, compared: RunComparison) -> RatioEstimate | None:
    found = _found(item, compared)
    # A damaged record may say anything.
    return found if found is not None and plottable(found.ratio) else None


def _found(item: Decision, compared: RunComparison) -> RatioEstimate | None:
    if item.suite == "five":
        overall = (it for it in compared.overall if (it.suite, it.metric) == ("five", item.metric))
        return next((it.estimate for it in overall), None)
    for found in compared.differences:
        if (found.suite, found.metric) == (item.suite, item.metric) and item.is_asked(found):
            return found.estimate
    return None


def _row(item: Decision, sides: Sequence[Side], compared: Sequence[RunComparison]) -> Row:
    cells = [_digits(item, _value(item, sides[0].runs))]
    for side, found in zip(sides[1:], compared, strict=True):
        value = _digits(item, _value(item, side.runs))
        estimate = _estimate(item, found)
        cells.append(value if estimate is None else f"{value}: {_words(estimate, item)}")
    return Row(f"{item.title}: {item.told}", tuple(cells))


def _digits(item: Decision, value: float | None) -> str:
    return figure(value, 2 if item.lower_is_better else 1)


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
