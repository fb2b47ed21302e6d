"""The first screen: which run is how much faster at what, and how sure that is."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sparkdeploy.bench.compare import DifferenceVerdict, Side, compare, ratio_of, spread_of
from sparkdeploy.bench.load.plan import Slo
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.report.loads import LoadAsked, alike, asked_of, common_rate
from sparkdeploy.bench.report.quality import quality_notes, quality_rows
from sparkdeploy.bench.report.table import (
    LOAD,
    NOTHING,
    Table,
    in_thousands,
    rate_of,
    run_columns,
)
from sparkdeploy.bench.tables import change, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.bench.compare import RatioEstimate, RunComparison
    from sparkdeploy.bench.record import Cell, Run, SuiteResult
    from sparkdeploy.bench.report.table import Row, ShownRun

AGENT = "agent"
COUNTED = {Asking.OPEN_LOOP: "requests", Asking.CONVERSATIONS: "conversations"}


@dataclass(frozen=True, slots=True)
class Decision:
    """A question a reader has, and the figures that answer it."""

    title: str
    condition: str
    """And what is counted."""
    suite: str
    values: Callable[[SuiteResult], Sequence[float | None]]
    """One of each cell that is asked about; none where the suite does not answer."""
    asking: Asking = Asking.CLOSED_LOOP
    digits: int = 1
    lower_is_better: bool = False
    is_judged: bool = True

    def of_run(self, run: Run) -> list[float] | None:
        """Return the figures of a run's cells; None where one lacks the figure."""
        suite = run.suite(self.suite, self.asking)
        found = self.values(suite) if suite is not None else ()
        values = [value for value in found if value is not None]
        return values if values and len(values) == len(found) else None

    def mean(self, side: Side) -> float | None:
        """Return the mean over runs of each one's mean over the cells."""
        means = [statistics.fmean(values) for run in side.runs if (values := self.of_run(run))]
        return statistics.fmean(means) if means else None

    def estimate(self, base: Side, other: Side, known: Sequence[Side]) -> RatioEstimate | None:
        """Compare as `compare` does, by the variation between runs of the same machine.

        None where the prompts differ or one side has no figures.
        """
        prompts = self._prompts(base.newest)
        before, after = (self._logarithms(side, prompts) for side in (base, other))
        if not before or not after:
            return None
        if not self.is_judged:
            return ratio_of(before, after, spread_of(()))
        machine = base.newest.origin.machine
        sides = {tuple(run.run_id for run in side.runs): side for side in (base, other, *known)}
        like = (side for side in sides.values() if side.newest.origin.machine == machine)
        return ratio_of(before, after, spread_of(self._logarithms(it, prompts) for it in like))

    def _logarithms(self, side: Side, prompts: str | None) -> list[float]:
        found = [self.of_run(run) for run in side.runs if self._prompts(run) == prompts]
        return [
            statistics.fmean(map(math.log, values))
            for values in found
            if values and min(values) > 0
        ]

    def _prompts(self, run: Run) -> str | None:
        suite = run.suite(self.suite, self.asking)
        return suite.prompts if suite is not None else None


class BestRun(NamedTuple):
    """The answer to one question: the best by its mean, and how it stands beside the second."""

    title: str
    condition: str
    name: str
    series: int
    value: str
    beside: str


class FirstScreen(NamedTuple):
    verdicts: Sequence[BestRun]
    table: Table
    notes: Sequence[str]


def first_screen(runs: Sequence[ShownRun], known: Sequence[Side]) -> FirstScreen | None:
    """Return None when no run has a figure that decides anything."""
    # The shown one is the newest: what it measured is compared.
    sides = [Side(shown.name, (*shown.others, shown.run)) for shown in runs]
    asked = tuple(decisions(runs))
    if not asked:
        return None
    verdicts = [found for item in asked if (found := _best(item, runs, sides, known)) is not None]
    rows = [_row(item, sides, known) for item in asked]
    beside = [*quality_rows(runs), *_machine_rows(runs)]
    against = f", against {runs[0].name}" if len(runs) > 1 else ""
    groups = (("", rows), ("", beside))
    table = Table(f"By decision{against}", "decision", run_columns(runs), groups)
    compared = [compare(sides[0], other, known) for other in sides[1:]]
    notes = (*_notes(sides, compared), *_load_notes(asked), *quality_notes(runs))
    return FirstScreen(verdicts, table, notes)


def decisions(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    if any(shown.cells("five") for shown in runs):
        condition = "five prompt classes, tok/s end to end"
        values = partial(_statistics, metric="end_to_end_tok_s", is_asked=_is_alone)
        yield Decision("One user", condition, "five", values)
    yield from _of_load("Several users", runs, Asking.OPEN_LOOP)
    yield from _of_sweep(runs)
    yield from _of_load("Agents", runs, Asking.CONVERSATIONS)
    if any(cell.prompt == AGENT for shown in runs for cell in shown.cells("decode")):
        values = partial(_statistics, metric="stream_decode_tok_s", is_asked=_is_agent)
        yield Decision("Agents", "an agent's turns, tok/s decoding", "decode", values)


def _statistics(
    suite: SuiteResult, metric: str, is_asked: Callable[[Cell], bool]
) -> list[float | None]:
    return [
        cell.statistics[metric].mean if metric in cell.statistics else None
        for cell in suite.cells
        if is_asked(cell)
    ]


def _is_alone(cell: Cell) -> bool:
    return cell.concurrency == 1


def _is_agent(cell: Cell) -> bool:
    return cell.prompt == AGENT and cell.concurrency == 1


def _of_sweep(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    """Ask at the most streams, and at the longest context, that all swept runs have."""
    tables = [
        {(cell.concurrency, cell.context_tokens or 0) for cell in cells}
        for shown in runs
        if (cells := shown.cells("sweep"))
    ]
    common = set.intersection(*tables) if tables else set()
    if not common:
        return
    streams, context = max(common, key=lambda key: (key[0], -key[1]))
    if streams > 1:
        condition = f"{streams} at once with {in_thousands(context)} each, tok/s of all together"
        yield _swept("Several users", condition, "decode_tok_s", (streams, context))
    alone = [tokens for count, tokens in common if count == 1]
    if not alone or max(alone) == min(tokens for _, tokens in common):
        return
    longest = max(alone)
    condition = f"{in_thousands(longest)}, one request"
    metric = "stream_decode_tok_s"
    yield _swept("Long context", f"{condition}, tok/s decoding", metric, (1, longest))
    yield Decision(
        "Long context, wait",
        f"{condition}, s to the first token",
        "sweep",
        partial(_statistics, metric="ttft_p50_s", is_asked=_at(1, longest)),
        digits=2,
        lower_is_better=True,
    )


def _swept(title: str, condition: str, metric: str, at: tuple[int, int]) -> Decision:
    values = partial(_statistics, metric=metric, is_asked=_at(*at))
    return Decision(title, condition, "sweep", values)


def _at(streams: int, context: int) -> Callable[[Cell], bool]:
    return lambda cell: (cell.concurrency, cell.context_tokens or 0) == (streams, context)


def _of_load(title: str, runs: Sequence[ShownRun], asking: Asking) -> Iterator[Decision]:
    """Yield the best that the loads can say: the highest rate that holds, goodput, or waiting."""
    suites = [suite for _, suite in alike(runs, asking)]
    asked = asked_of(suites[0]) if suites else None
    loads = [cell.load for cell in suites[0].cells if cell.load is not None] if suites else []
    if asked is None:
        return
    limits = str(Slo(loads[0].limits_s))
    source = f"a second (bench load, {asking})"
    decision = partial(Decision, title, suite=LOAD, asking=asking, digits=2)
    rate = common_rate(suites)
    if suites[0].sustained is not None:
        share = f"{suites[0].sustained.wanted_share:.0%}"
        condition = f"highest rate with {share} within {limits}, {COUNTED[asking]} {source}"
        yield decision(condition, values=partial(_sustained, asked=asked), is_judged=False)
    elif rate is not None:
        at = f"{rate:.3g} {COUNTED[asking]} {source}"
        if limits:
            # Of conversations each turn is a request of its own.
            read = partial(_at_rate, asked=asked, rate=rate, read=_goodput)
            yield decision(f"{at}: requests within {limits}, a second", values=read)
        else:
            read = partial(_at_rate, asked=asked, rate=rate, read=_waiting)
            condition = f"{at}: s to the first token, 95th percentile"
            yield decision(condition, values=read, lower_is_better=True)


def _sustained(suite: SuiteResult, asked: LoadAsked) -> list[float | None]:
    """Nothing is the answer where no rate that was tried held the limits."""
    found = suite.sustained if asked_of(suite) == asked else None
    return [found.rate_per_s or 0.0] if found is not None else []


def _at_rate(
    suite: SuiteResult, asked: LoadAsked, rate: float, read: Callable[[Cell], float | None]
) -> list[float | None]:
    if asked_of(suite) != asked:
        return []
    return [read(cell) for cell in suite.cells if rate_of(cell) == rate]


def _goodput(cell: Cell) -> float | None:
    return cell.load.goodput_per_s if cell.load is not None else None


def _waiting(cell: Cell) -> float | None:
    return cell.latency.ttft_s.p95 if cell.latency.ttft_s is not None else None


def _best(
    item: Decision, runs: Sequence[ShownRun], sides: Sequence[Side], known: Sequence[Side]
) -> BestRun | None:
    values = [(value, at) for at, side in enumerate(sides) if (value := item.mean(side))]
    if not values:
        return None
    order = sorted(values, reverse=not item.lower_is_better)
    value, first = order[0]
    beside = "no other run has this" if len(runs) > 1 else ""
    if len(order) > 1:
        second = order[1][1]
        estimate = item.estimate(sides[second], sides[first], known)
        beside = f"before {runs[second].name}, whose conditions are not the same"
        if estimate is not None:
            beside = f"{_changed(estimate)} against {runs[second].name}: {_judged(estimate, item)}"
    name, series = runs[first].name, runs[first].series
    return BestRun(item.title, item.condition, name, series, figure(value, item.digits), beside)


def _row(item: Decision, sides: Sequence[Side], known: Sequence[Side]) -> Row:
    cells = [figure(item.mean(sides[0]), item.digits)]
    for side in sides[1:]:
        estimate = item.estimate(sides[0], side, known)
        words = f": {_changed(estimate)}, {_judged(estimate, item)}" if estimate is not None else ""
        cells.append(f"{figure(item.mean(side), item.digits)}{words}")
    return f"{item.title}: {item.condition}", tuple(cells)


def _changed(estimate: RatioEstimate) -> str:
    if estimate.low95 is None or estimate.high95 is None:
        return change(estimate.ratio - 1)
    low, high = change(estimate.low95 - 1), change(estimate.high95 - 1)
    return f"{change(estimate.ratio - 1)} ({low} to {high})"


def _judged(estimate: RatioEstimate, item: Decision) -> str:
    match estimate.verdict:
        case DifferenceVerdict.UNKNOWN:
            return "not judged"
        case DifferenceVerdict.NONE:
            return "no difference shown"
        case verdict:
            is_higher = verdict is DifferenceVerdict.HIGHER
            return "slower" if is_higher == item.lower_is_better else "faster"


def _machine_rows(runs: Sequence[ShownRun]) -> Iterator[Row]:
    for head, cells in (
        ("Agents, % of prompts found in the prefix cache", list(map(_cache_hits, runs))),
        ("KV cache, tokens", [_cache_tokens(shown.run) for shown in runs]),
        ("Least free memory, GiB", [_free_memory(shown.run) for shown in runs]),
    ):
        if set(cells) != {NOTHING}:
            yield head, tuple(cells)


def _cache_hits(shown: ShownRun) -> str:
    """Return per cent of conversations' prompt tokens, at all rates; `-` where it is unknown.

    The server's answers count where they say it; else its counters, in which the ramp and other
    clients are, too.
    """
    suite = shown.load(Asking.CONVERSATIONS)
    cells = suite.cells if suite is not None else ()
    turns = [turn for cell in cells if cell.load is not None for turn in cell.load.turns]
    counts: list[tuple[float, float]] = [
        (answered * turn.cached_tokens, answered * turn.prompt_tokens)
        for turn in turns
        if (answered := turn.requests - turn.failures)
        and turn.cached_tokens is not None
        and turn.prompt_tokens is not None
    ]
    if not counts:
        counted = [cell.server for cell in cells if cell.server is not None]
        counts = [(it.prefix_hits or 0, it.prefix_queries or 0) for it in counted]
    hits, asked = sum(hits for hits, _ in counts), sum(asked for _, asked in counts)
    return figure(100 * hits / asked) if asked else NOTHING


def _cache_tokens(run: Run) -> str:
    engine = run.origin.engine
    return figure(engine.kv_cache_tokens if engine is not None else None, 0)


def _free_memory(run: Run) -> str:
    watches = (cell.machine for suite in run.suites for cell in suite.cells)
    floors = [it.memory_floor_bytes for it in watches if it is not None and it.memory_floor_bytes]
    return figure(min(floors) / 2**30) if floors else NOTHING


def _notes(sides: Sequence[Side], compared: Sequence[RunComparison]) -> Iterator[str]:
    counts = ", ".join(f"{side.label} {len(side.runs)}" for side in sides)
    yield f"Runs of each: {counts}."
    if not compared:
        return
    if repeated := compared[0].variation_from:
        yield f"How much runs of the same differ is seen in the runs of {', '.join(repeated)}."
    else:
        yield (
            "How much two runs of the same differ is not known on this machine, so no difference "
            "is judged: three to five runs under each label are a comparison."
        )
    differ = {note for found in compared for note in found.notes if note.endswith("differ")}
    yield from (f"Not compared: {note}." for note in sorted(differ))


def _load_notes(asked: Sequence[Decision]) -> Iterator[str]:
    loads = [item for item in asked if item.suite == LOAD]
    if loads:
        yield (
            "Rows that name bench load are of an open loop: requests do not wait for one another. "
            "All others are of a closed loop, and their figures do not compare with those."
        )
    if not all(item.is_judged for item in loads):
        yield "A highest rate lies between two that were tried, so no difference is judged."
