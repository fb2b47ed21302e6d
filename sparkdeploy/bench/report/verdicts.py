"""The first screen: which run is how much faster at what, and how sure that is."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sparkdeploy.bench.compare import DifferenceVerdict, RatioEstimate, Side, cell_mean, compare
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

    from sparkdeploy.bench.compare import FigureDifference, RunComparison
    from sparkdeploy.bench.record import Cell, Run
    from sparkdeploy.bench.report.table import Row, ShownRun


AGENT = "agent"
COUNTED = {Asking.OPEN_LOOP: "requests", Asking.CONVERSATIONS: "conversations"}
SUSTAINED = "sustained_per_s"
"""No figure of a cell: the rate that a load's search found."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A question a reader has, and the figure that answers it."""

    title: str
    condition: str
    """And what is counted."""
    suite: str
    metric: str
    is_asked: Callable[[Cell | FigureDifference], bool] = lambda _cell: True
    asking: Asking = Asking.CLOSED_LOOP
    load: LoadAsked | None = None
    """How a load was asked: runs whose load was asked in another way have no figure."""
    digits: int = 1
    lower_is_better: bool = False

    def of_run(self, run: Run) -> float | None:
        """Return the mean over the cells; None where one lacks the figure."""
        suite = run.suite(self.suite, self.asking)
        if suite is None or (self.load is not None and asked_of(suite) != self.load):
            return None
        if self.metric == SUSTAINED:
            # Nothing is the answer where no rate that was tried held the limits.
            return (suite.sustained.rate_per_s or 0.0) if suite.sustained is not None else None
        found = [cell_mean(cell, self.metric) for cell in suite.cells if self.is_asked(cell)]
        values = [value for value in found if value is not None]
        return statistics.fmean(values) if values and len(values) == len(found) else None

    def mean(self, side: Side) -> float | None:
        means = [value for run in side.runs if (value := self.of_run(run)) is not None]
        return statistics.fmean(means) if means else None

    def estimate(self, base: Side, other: Side, found: RunComparison) -> RatioEstimate | None:
        """Return the ratio that a comparison has of this; None where one side has no figures."""
        before, after = self.mean(base), self.mean(other)
        if not before or not after:
            return None
        if self.metric == SUSTAINED:
            return RatioEstimate(after / before, None, None)
        name = (self.suite, self.metric)
        cells = [
            it for it in found.differences if (it.suite, it.metric) == name and self.is_asked(it)
        ]
        whole = [it for it in found.overall if (it.suite, it.metric) == name]
        return next((it.estimate for it in (cells if len(cells) < 2 else whole)), None)


class FirstScreen(NamedTuple):
    table: Table
    notes: Sequence[str]


def first_screen(runs: Sequence[ShownRun], known: Sequence[Side]) -> FirstScreen | None:
    """Return None when no run has a figure that decides anything."""
    # The shown one is the newest: what it measured is compared.
    sides = [Side(shown.name, (*shown.others, shown.run)) for shown in runs]
    asked = tuple(decisions(runs))
    if not asked:
        return None

    compared = [compare(sides[0], other, known) for other in sides[1:]]
    rows = [_row(item, sides, compared) for item in asked]
    beside = [*quality_rows(runs), *_machine_rows(runs)]
    against = f", against {runs[0].name}" if len(runs) > 1 else ""
    groups = (("", rows), ("", beside))
    table = Table(f"By decision{against}", "decision", run_columns(runs), groups)
    notes = (*_notes(sides, compared), *_load_notes(asked), *quality_notes(runs))
    return FirstScreen(table, notes)


def decisions(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    if any(shown.cells("five") for shown in runs):
        condition = "five prompt classes, tok/s end to end"
        yield Decision("One user", condition, "five", "end_to_end_tok_s", _is_alone)
    yield from _of_load("Several users", runs, Asking.OPEN_LOOP)
    yield from _of_sweep(runs)
    yield from _of_load("Agents", runs, Asking.CONVERSATIONS)
    if any(cell.prompt == AGENT for shown in runs for cell in shown.cells("decode")):
        condition = "an agent's turns, tok/s decoding"
        yield Decision("Agents", condition, "decode", "stream_decode_tok_s", _is_agent)


def _is_alone(cell: Cell | FigureDifference) -> bool:
    return cell.concurrency == 1


def _is_agent(cell: Cell | FigureDifference) -> bool:
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
        is_asked = _at(streams, context)
        yield Decision("Several users", condition, "sweep", "decode_tok_s", is_asked)
    alone = [tokens for count, tokens in common if count == 1]
    if not alone or max(alone) == min(tokens for _, tokens in common):
        return
    longest = partial(Decision, suite="sweep", is_asked=_at(1, max(alone)))
    condition = f"{in_thousands(max(alone))}, one request"
    yield longest("Long context", f"{condition}, tok/s decoding", metric="stream_decode_tok_s")
    waits = f"{condition}, s to the first token"
    yield longest("Long context, wait", waits, metric="ttft_p50_s", digits=2, lower_is_better=True)


def _at(streams: int, context: int) -> Callable[[Cell | FigureDifference], bool]:
    return lambda cell: (cell.concurrency, cell.context_tokens or 0) == (streams, context)


def _of_load(title: str, runs: Sequence[ShownRun], asking: Asking) -> Iterator[Decision]:
    """Yield the best that the loads can say: the highest rate that holds, goodput, or waiting."""
    suites = [suite for _, suite in alike(runs, asking)]
    asked = asked_of(suites[0]) if suites else None
    if asked is None:
        return
    cells = [cell for cell in suites[0].cells if cell.load is not None]
    limits = str(Slo(cells[0].load.limits_s)) if cells[0].load is not None else ""
    source = f"a second (bench load, {asking})"
    decision = partial(Decision, title, suite=LOAD, asking=asking, load=asked, digits=2)
    rate = common_rate(suites)
    if suites[0].sustained is not None:
        share = f"{suites[0].sustained.wanted_share:.0%}"
        condition = f"highest rate with {share} within {limits}, {COUNTED[asking]} {source}"
        yield decision(condition, metric=SUSTAINED)
    elif rate is not None:
        at = f"{rate:.3g} {COUNTED[asking]} {source}"
        cell = next(cell for cell in cells if rate_of(cell) == rate)
        place = (cell.prompt, cell.asked)
        decision = partial(decision, is_asked=lambda it: (it.prompt, it.asked) == place)
        if limits:
            # Of conversations each turn is a request of its own.
            yield decision(f"{at}: requests within {limits}, a second", metric="goodput_per_s")
        else:
            condition = f"{at}: s to the first token, 95th percentile"
            yield decision(condition, metric="ttft_p95_s", lower_is_better=True)


def _row(item: Decision, sides: Sequence[Side], compared: Sequence[RunComparison]) -> Row:
    cells = [figure(item.mean(sides[0]), item.digits)]
    for side, found in zip(sides[1:], compared, strict=True):
        estimate = item.estimate(sides[0], side, found)
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
    if any(item.metric == SUSTAINED for item in loads):
        yield "A highest rate lies between two that were tried, so no difference is judged."
