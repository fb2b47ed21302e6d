"""The first screen: which run is how much faster at what, and how sure that is."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from sparkdeploy.bench.compare import (
    DifferenceVerdict,
    Side,
    figures_of,
    ratio_over,
    repeated_sides,
    verdict_of,
)
from sparkdeploy.bench.figures import Estimate
from sparkdeploy.bench.record import Cell, CellKey, SuiteResult
from sparkdeploy.bench.report.shown import LOAD, Section, ShownRun, alike, common_rate, in_thousands
from sparkdeploy.bench.tables import change, figure, limits_text

AGENT = "agent"
LAST_TURN = "turn 6"
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
        tables = (self._figures(suite) for suite in side.suites_as(self.like))
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
    yield from _of_load(runs)
    yield from _of_sweep(runs)
    title = f"Agents: {LAST_TURN} of a conversation, several at once, s to the first token"
    yield from _closed(
        *(runs, "agents", title, "ttft_p50_s"),
        lambda it: it.prompt == LAST_TURN and it.concurrency > 1,
    )
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
    """Yield what is asked of a suite's cells, as the first run was asked that has them."""
    for shown in runs:
        keys = {cell.key for cell in shown.cells(suite) if is_asked(cell)}
        like = shown.run.suite(suite)
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


def _of_load(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    """Yield the best that the loads can say: the highest rate that holds, goodput, or waiting."""
    suites = [suite for _, suite in alike(runs)]
    if not suites:
        return
    like, rate = suites[0], common_rate(suites)
    limits = limits_text(like.loads[0].limits_s)
    source = "requests a second (bench load)"
    at = f"Several users: {rate or 0:.3g} {source}:"
    keys = {cell.key for cell in like.cells if cell.load and cell.load.rate_per_s == rate}
    if like.sustained is not None:
        share = f"{like.sustained.wanted_share:.0%} within {limits}"
        words = f"Several users: highest rate with {share}, {source}"
        yield Decision(words, like, SUSTAINED, {SUSTAINED_KEY}, 2)
    elif rate is not None and limits:
        words = f"{at} requests within {limits}, a second"
        yield Decision(words, like, "goodput_per_s", keys, 2)
    elif rate is not None:
        words = f"{at} s to the first token, 95th percentile"
        yield Decision(words, like, "ttft_p95_s", keys, 2, lower_is_better=True)


def _answers(item: Decision, sides: Sequence[Side], repeated: Sequence[Side]) -> Iterator[str]:
    groups = [item.table(side) for side in repeated] if item.metric != SUSTAINED else []
    base = item.table(sides[0])
    for side in sides:
        table = item.table(side)
        means = [statistics.fmean(run[key] for key in item.keys) for run in table]
        text = figure(statistics.fmean(means) if means else None, item.digits)
        found = ratio_over([base, table, *groups], item.keys)
        if side is not sides[0] and found is not None:
            text += f": {_changed(found.estimate)}, {_judged(found.estimate, item)}"
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
    """Return the share of agents' prompt tokens that were in the prefix cache."""
    cells = shown.cells("agents")
    asked = [it for cell in cells for it in cell.samples if it.round and it.failure is None]
    hits = [(it.cached_tokens, it.prompt_tokens) for it in asked if it.cached_tokens is not None]
    if not hits:
        servers = (cell.server for cell in cells if cell.server is not None)
        hits = [(it.prefix_hits or 0, it.prefix_queries or 0) for it in servers]
    cached, prompts = (sum(column) for column in zip(*hits, strict=True)) if hits else (0, 0)
    return cached / prompts if prompts else None
