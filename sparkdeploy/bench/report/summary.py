"""The first screen: which run is how much faster at what, and how sure that is."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from sparkdeploy.bench.compare import (
    DifferenceVerdict,
    Side,
    asked_of,
    figures_of,
    logarithms,
    ratio_of,
    repeated_sides,
    spread_of,
    verdict_of,
)
from sparkdeploy.bench.load.plan import Slo
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.record import Cell, CellKey, Estimate, SuiteResult
from sparkdeploy.bench.report.shown import LOAD, Section, ShownRun, alike, common_rate, in_thousands
from sparkdeploy.bench.tables import change, figure

AGENT = "agent"
SUSTAINED = "sustained"
"""In place of a metric: the highest rate that held the limits."""
SUSTAINED_KEY: CellKey = (SUSTAINED, 0, None, 0, "")


class Decision(NamedTuple):
    """A question a reader has, and the cells of a suite whose figure answers it."""

    title: str
    like: SuiteResult
    """A run's suite answers where it was asked as this one was."""
    metric: str
    keys: Set[CellKey]
    digits: int = 1
    lower_is_better: bool = False

    def table(self, side: Side) -> list[Mapping[CellKey, float]]:
        """Return the figures of each run that has all that is asked."""
        asked = asked_of(self.like)
        suites = (it for it in side.suites_as(self.like) if asked_of(it) == asked)
        tables = (self._figures(suite) for suite in suites)
        return [found for found in tables if found.keys() >= self.keys]

    def _figures(self, suite: SuiteResult) -> dict[CellKey, float]:
        if self.metric != SUSTAINED:
            return figures_of(suite, self.metric)
        # Nothing is the answer where no rate that was tried held the limits.
        return {SUSTAINED_KEY: suite.sustained.rate_per_s or 0.0} if suite.sustained else {}


class FirstTable(NamedTuple):
    """What the first table says, and by which runs."""

    section: Section
    sides: Sequence[Side]
    repeated: Sequence[str]
    """Labels whose runs say how much runs of the same differ."""
    has_load: bool
    has_sustained: bool


def summary_of(runs: Sequence[ShownRun], known: Sequence[Side]) -> FirstTable | None:
    """Return None when no run has a figure that answers anything; `known` judges differences."""
    decisions = tuple(_decisions(runs))
    if not decisions:
        return None
    # The shown one is the newest: what it measured is compared.
    sides = [Side(shown.name, (*shown.others, shown.run)) for shown in runs]
    repeated = repeated_sides([*sides, *known], sides[0])
    rows = [(item.title, tuple(_answers(item, sides, repeated))) for item in decisions]
    return FirstTable(
        Section("summary", "decision", runs, (("", rows),)),
        sides,
        tuple(dict.fromkeys(side.label for side in repeated)),
        any(item.like.name == LOAD for item in decisions),
        any(item.metric == SUSTAINED for item in decisions),
    )


def _decisions(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    title = "One user: five prompt classes, tok/s end to end"
    yield from _closed(runs, "five", title, "end_to_end_tok_s", lambda it: it.concurrency == 1)
    yield from _of_load("Several users", runs, Asking.OPEN_LOOP)
    yield from _of_sweep(runs)
    yield from _of_load("Agents", runs, Asking.CONVERSATIONS)
    title = "Agents: an agent's turns, tok/s decoding"
    yield from _closed(
        *(runs, "decode", title, "stream_decode_tok_s"),
        lambda it: it.prompt == AGENT and it.concurrency == 1,
    )


def _closed(
    runs: Sequence[ShownRun],
    suite: str,
    title: str,
    metric: str,
    is_asked: Callable[[Cell], bool],
) -> Iterator[Decision]:
    """Yield what is asked of a closed loop's cells, as the first run was asked that has them."""
    for shown in runs:
        keys = {cell.key for cell in shown.cells(suite) if is_asked(cell)}
        like = shown.run.suite(suite, Asking.CLOSED_LOOP)
        if like is not None and keys:
            is_wait = metric.endswith("_s") and not metric.endswith("tok_s")
            yield Decision(title, like, metric, keys, 1 + is_wait, lower_is_better=is_wait)
            return


def _of_sweep(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    """Ask at the most streams, and at the longest context, that all swept runs have."""
    tables = [set(map(_place, cells)) for shown in runs if (cells := shown.cells("sweep"))]
    common = set.intersection(*tables) if tables else set()
    if not common:
        return
    most = max(common, key=lambda place: (place[0], -place[1]))
    if most[0] > 1:
        title = (
            f"Several users: {most[0]} at once with {in_thousands(most[1])} each, tok/s of all "
            "together"
        )
        yield from _closed(runs, "sweep", title, "decode_tok_s", lambda it: _place(it) == most)
    longest = max((tokens for count, tokens in common if count == 1), default=0)
    if longest <= min(tokens for _, tokens in common):
        return
    where, at = f"{in_thousands(longest)}, one request", lambda it: _place(it) == (1, longest)
    title = f"Long context: {where}, tok/s decoding"
    yield from _closed(runs, "sweep", title, "stream_decode_tok_s", at)
    title = f"Long context, wait: {where}, s to the first token"
    yield from _closed(runs, "sweep", title, "ttft_p50_s", at)


def _place(cell: Cell) -> tuple[int, int]:
    return cell.concurrency, cell.context_tokens or 0


def _of_load(title: str, runs: Sequence[ShownRun], asking: Asking) -> Iterator[Decision]:
    """Yield the best that the loads can say: the highest rate that holds, goodput, or waiting."""
    suites = [suite for _, suite in alike(runs, asking)]
    if not suites:
        return
    like, rate = suites[0], common_rate(suites)
    limits_s = like.loads[0].limits_s
    counted = "conversations" if asking is Asking.CONVERSATIONS else "requests"
    source = f"{counted} a second (bench load, {asking})"
    at = f"{title}: {rate or 0:.3g} {source}:"
    keys = {cell.key for cell in like.cells if cell.load and cell.load.rate_per_s == rate}
    if like.sustained is not None:
        share = f"{like.sustained.wanted_share:.0%} within {Slo(limits_s)}"
        words = f"{title}: highest rate with {share}, {source}"
        yield Decision(words, like, SUSTAINED, {SUSTAINED_KEY}, 2)
    elif rate is not None and limits_s:
        # Of conversations each turn is a request of its own.
        words = f"{at} requests within {Slo(limits_s)}, a second"
        yield Decision(words, like, "goodput_per_s", keys, 2)
    elif rate is not None:
        words = f"{at} s to the first token, 95th percentile"
        yield Decision(words, like, "ttft_p95_s", keys, 2, lower_is_better=True)


def _answers(item: Decision, sides: Sequence[Side], repeated: Sequence[Side]) -> Iterator[str]:
    groups = repeated if item.metric != SUSTAINED else ()
    spread = spread_of(logarithms(item.table(side), item.keys) for side in groups)
    base = logarithms(item.table(sides[0]), item.keys)
    for side in sides:
        table = item.table(side)
        means = [statistics.fmean(run[key] for key in item.keys) for run in table]
        text = figure(statistics.fmean(means) if means else None, item.digits)
        other = logarithms(table, item.keys)
        if side is not sides[0] and base and other:
            found = ratio_of(base, other, spread)
            text += f": {_changed(found)}, {_judged(found, item)}"
        yield text


def _changed(ratio: Estimate) -> str:
    shares = [change(end - 1) for end in (ratio.value, ratio.low, ratio.high) if end is not None]
    return shares[0] + (f" ({' to '.join(shares[1:])})" if shares[1:] else "")


def _judged(ratio: Estimate, item: Decision) -> str:
    match verdict_of(ratio):
        case DifferenceVerdict.UNKNOWN:
            return "not judged"
        case DifferenceVerdict.NONE:
            return "no difference shown"
        case verdict:
            is_higher = verdict is DifferenceVerdict.HIGHER
            return "slower" if is_higher == item.lower_is_better else "faster"


def cache_hits(shown: ShownRun) -> float | None:
    """Return the share of conversations' prompt tokens in the prefix cache, at all rates."""
    suite = shown.load(Asking.CONVERSATIONS)
    if suite is None:
        return None
    counts: list[tuple[float, float]] = [
        (answered * turn.cached_tokens, answered * turn.prompt_tokens)
        for load in suite.loads
        for turn in load.turns
        if (answered := turn.requests - turn.failures)
        and turn.cached_tokens is not None
        and turn.prompt_tokens is not None
    ]
    if not counts:
        servers = (cell.server for cell in suite.cells if cell.server is not None)
        counts = [(it.prefix_hits or 0, it.prefix_queries or 0) for it in servers]
    hits, asked = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return hits / asked if asked else None
