"""The first screen: which run is how much faster at what, and how sure that is."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sparkdeploy.bench.compare import (
    DifferenceVerdict,
    Side,
    Spread,
    cell_mean,
    ratio_of,
    repeated_sides,
    spread_of,
    verdict_of,
)
from sparkdeploy.bench.load.plan import Slo
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.report.loads import alike, asked_of, common_rate
from sparkdeploy.bench.report.shown import LOAD, Section, in_thousands
from sparkdeploy.bench.tables import change, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.bench.record import Cell, Estimate, Run, SuiteResult
    from sparkdeploy.bench.report.shown import ShownRun

AGENT = "agent"
COUNTED = {Asking.OPEN_LOOP: "requests", Asking.CONVERSATIONS: "conversations"}


class Decision(NamedTuple):
    """A question a reader has, and the figure of a run that answers it; None: it has none."""

    title: str
    read: Callable[[Run], float | None]
    digits: int = 1
    lower_is_better: bool = False
    is_judged: bool = True

    def values(self, side: Side) -> list[float]:
        return [value for run in side.runs if (value := self.read(run)) is not None]


def summary_section(runs: Sequence[ShownRun], known: Sequence[Side]) -> Section | None:
    """Return None when no run has a figure that answers anything; `known` judges differences."""
    decisions = tuple(_decisions(runs))
    if not decisions:
        return None
    # The shown one is the newest: what it measured is compared.
    sides = [Side(shown.name, (*shown.others, shown.run)) for shown in runs]
    repeated = repeated_sides([*sides, *known], sides[0])
    rows = [(item.title, tuple(_answers(item, sides, repeated))) for item in decisions]
    notes = (*_notes(sides, repeated), *_load_notes(decisions))
    return Section("summary", "decision", runs, (("", rows),), notes=notes)


def _decisions(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    if read := _closed(runs, "five", "end_to_end_tok_s", lambda cell: cell.concurrency == 1):
        yield Decision("One user: five prompt classes, tok/s end to end", read)
    yield from _of_load("Several users", runs, Asking.OPEN_LOOP)
    yield from _of_sweep(runs)
    yield from _of_load("Agents", runs, Asking.CONVERSATIONS)
    if read := _closed(runs, "decode", "stream_decode_tok_s", _is_agent):
        yield Decision("Agents: an agent's turns, tok/s decoding", read)


def _is_agent(cell: Cell) -> bool:
    return cell.prompt == AGENT and cell.concurrency == 1


def _closed(
    runs: Sequence[ShownRun], name: str, metric: str, is_asked: Callable[[Cell], bool]
) -> Callable[[Run], float | None] | None:
    """Return what reads the mean over some cells of a suite, as the first run was asked that has
    them; None where none has."""
    suites = (shown.run.suite(name, Asking.CLOSED_LOOP) for shown in runs)
    like = next((it for it in suites if it is not None and any(map(is_asked, it.cells))), None)
    if like is None:
        return None
    return partial(_mean_of, like=like, metric=metric, is_asked=is_asked)


def _mean_of(
    run: Run, like: SuiteResult, metric: str, is_asked: Callable[[Cell], bool]
) -> float | None:
    suite = run.suite(like.name, like.asking)
    if suite is None or suite.prompts != like.prompts:
        return None
    found = [cell_mean(cell, metric) for cell in suite.cells if is_asked(cell)]
    values = [value for value in found if value is not None]
    return statistics.fmean(values) if values and len(values) == len(found) else None


def _of_sweep(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    """Ask at the most streams, and at the longest context, that all swept runs have."""
    tables = [set(map(_place, cells)) for shown in runs if (cells := shown.cells("sweep"))]
    common = set.intersection(*tables) if tables else set()
    if not common:
        return
    streams, context = max(common, key=lambda place: (place[0], -place[1]))
    read = _closed(runs, "sweep", "decode_tok_s", partial(_is_at, place=(streams, context)))
    if read and streams > 1:
        words = f"{streams} at once with {in_thousands(context)} each, tok/s of all together"
        yield Decision(f"Several users: {words}", read)
    longest = max((tokens for count, tokens in common if count == 1), default=0)
    if longest <= min(tokens for _, tokens in common):
        return
    words, is_asked = f"{in_thousands(longest)}, one request", partial(_is_at, place=(1, longest))
    if read := _closed(runs, "sweep", "stream_decode_tok_s", is_asked):
        yield Decision(f"Long context: {words}, tok/s decoding", read)
    if read := _closed(runs, "sweep", "ttft_p50_s", is_asked):
        title = f"Long context, wait: {words}, s to the first token"
        yield Decision(title, read, digits=2, lower_is_better=True)


def _place(cell: Cell) -> tuple[int, int]:
    return cell.concurrency, cell.context_tokens or 0


def _is_at(cell: Cell, place: tuple[int, int]) -> bool:
    return _place(cell) == place


def _of_load(title: str, runs: Sequence[ShownRun], asking: Asking) -> Iterator[Decision]:
    """Yield the best that the loads can say: the highest rate that holds, goodput, or waiting."""
    suites = [suite for _, suite in alike(runs, asking)]
    if not suites:
        return
    limits_s, rate = suites[0].loads[0].limits_s, common_rate(suites)
    source = f"{COUNTED[asking]} a second (bench load, {asking})"
    asked = partial(_of_alike, like=suites[0])
    if suites[0].sustained is not None:
        share = f"{suites[0].sustained.wanted_share:.0%} within {Slo(limits_s)}"
        yield Decision(f"{title}: highest rate with {share}, {source}", asked, 2, is_judged=False)
    elif rate is not None and limits_s:
        # Of conversations each turn is a request of its own.
        words = f"{title}: {rate:.3g} {source}: requests within {Slo(limits_s)}, a second"
        yield Decision(words, partial(asked, metric="goodput_per_s", rate=rate), 2)
    elif rate is not None:
        words = f"{title}: {rate:.3g} {source}: s to the first token, 95th percentile"
        yield Decision(words, partial(asked, metric="ttft_p95_s", rate=rate), 2, True)


def _of_alike(run: Run, like: SuiteResult, metric: str = "", rate: float = 0) -> float | None:
    """Return a load's figure at a rate, or the rate it sustained; None for one asked otherwise."""
    suite = run.suite(LOAD, like.asking)
    if suite is None or asked_of(suite) != asked_of(like):
        return None
    if not metric:
        # Nothing is the answer where no rate that was tried held the limits.
        return (suite.sustained.rate_per_s or 0.0) if suite.sustained is not None else None
    found = (cell for cell in suite.cells if cell.load and cell.load.rate_per_s == rate)
    return next((cell_mean(cell, metric) for cell in found), None)


def _answers(item: Decision, sides: Sequence[Side], repeated: Sequence[Side]) -> Iterator[str]:
    base, *others = [item.values(side) for side in sides]
    yield figure(statistics.fmean(base) if base else None, item.digits)
    spread = Spread(0.0, 0)
    if item.is_judged:
        spread = spread_of(_logarithms(item.values(side)) for side in repeated)
    for values in others:
        text = figure(statistics.fmean(values) if values else None, item.digits)
        if base and values and min(*base, *values) > 0:
            found = ratio_of(_logarithms(base), _logarithms(values), spread)
            text += f": {_changed(found)}, {_judged(found, item)}"
        yield text


def _logarithms(values: Sequence[float]) -> list[float]:
    return [math.log(value) for value in values if value > 0]


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


def _notes(sides: Sequence[Side], repeated: Sequence[Side]) -> Iterator[str]:
    yield f"Runs of each: {', '.join(f'{side.label} {len(side.runs)}' for side in sides)}."
    if len(sides) > 1 and repeated:
        names = ", ".join(dict.fromkeys(side.label for side in repeated))
        yield f"How much runs of the same differ is seen in the runs of {names}."
    elif len(sides) > 1:
        yield (
            "How much two runs of the same differ is not known on this machine, so no difference "
            "is judged: three to five runs under each label are a comparison."
        )


def _load_notes(asked: Sequence[Decision]) -> Iterator[str]:
    if any("(bench load, " in item.title for item in asked):
        yield (
            "Rows that name bench load are of an open loop: requests do not wait for one another. "
            "All others are of a closed loop, and their figures do not compare with those."
        )
    if not all(item.is_judged for item in asked):
        yield "A highest rate lies between two that were tried, so no difference is judged."


def cache_hits(shown: ShownRun) -> float | None:
    """Return the share of conversations' prompt tokens in the prefix cache, at all rates.

    The server's answers count where they say it; else its counters, in which the ramp and other
    clients are, too.
    """
    suite = shown.load(Asking.CONVERSATIONS)
    turns = [turn for load in (suite.loads if suite else ()) for turn in load.turns]
    counts: list[tuple[float, float]] = [
        (answered * turn.cached_tokens, answered * turn.prompt_tokens)
        for turn in turns
        if (answered := turn.requests - turn.failures)
        and turn.cached_tokens is not None
        and turn.prompt_tokens is not None
    ]
    if suite is not None and not counts:
        servers = (cell.server for cell in suite.cells if cell.server is not None)
        counts = [(it.prefix_hits or 0, it.prefix_queries or 0) for it in servers]
    hits, asked = sum(hits for hits, _ in counts), sum(asked for _, asked in counts)
    return hits / asked if asked else None
