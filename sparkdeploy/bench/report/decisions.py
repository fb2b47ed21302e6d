"""The questions that the first screen answers, and the figures of records that answer them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.report.chart import condition, plottable
from sparkdeploy.bench.report.load_decisions import load_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.bench.compare import FigureDifference, RunComparison, Side
    from sparkdeploy.bench.record import Cell, Run
    from sparkdeploy.bench.report.chart import ShownRun
    from sparkdeploy.bench.variation import RatioEstimate

    Asked = Cell | FigureDifference

AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides, the base first, and what `compare` says of them."""

    base: Side
    other: Side
    compared: RunComparison


@dataclass(frozen=True, slots=True)
class Decision:
    """A question a reader has, and what answers it."""

    title: str
    told: str
    """The condition and what is counted."""
    read: Callable[[Run], float | None]
    judge: Callable[[Pair], RatioEstimate | None]
    digits: int = 1
    lower_is_better: bool = False


def decisions(runs: Sequence[ShownRun], known: Sequence[Side]) -> Iterator[Decision]:
    if any(shown.cells("five") for shown in runs):
        told = "five prompt classes, tok/s end to end"
        read = partial(_mean, suite="five", metric="end_to_end_tok_s", is_asked=_alone)
        yield Decision("One user", told, read, _over_prompts)
    several = _loaded(runs, Asking.OPEN_LOOP, "Several users", known)
    if several is not None:
        yield several
    swept = tuple(_swept(runs))
    yield from _unless_loaded(swept[:1], runs, several, "sweep", Asking.OPEN_LOOP)
    yield from swept[1:]
    talking = _loaded(runs, Asking.CONVERSATIONS, "Agents", known)
    if talking is not None:
        yield talking
    if any(cell.prompt == AGENT for shown in runs for cell in shown.cells("decode")):
        told = "an agent's turns, tok/s decoding"
        alone = _of_cells("Agents", told, "decode", "stream_decode_tok_s", _agent)
        yield from _unless_loaded((alone,), runs, talking, "decode", Asking.CONVERSATIONS)


def _loaded(
    runs: Sequence[ShownRun], asking: Asking, title: str, known: Sequence[Side]
) -> Decision | None:
    found = load_answer(runs, asking)
    if found is None:
        return None

    def judge(pair: Pair) -> RatioEstimate | None:
        return found.judged(pair.base, pair.other, known)

    return Decision(title, found.told, found.read, judge, 2, found.lower_is_better)


def _unless_loaded(
    closed: Sequence[Decision],
    runs: Sequence[ShownRun],
    loaded: Decision | None,
    suite: str,
    asking: Asking,
) -> Iterator[Decision]:
    """Yield a closed loop's answer where the load does not answer for all runs that have it."""
    asked = [shown for shown in runs if shown.cells(suite)]
    if loaded is None:
        yield from closed
    elif any(shown.load(asking) is None for shown in asked):
        for item in closed:
            yield Decision(
                f"{item.title}, closed loop", item.told, item.read, item.judge, item.digits
            )


def _swept(runs: Sequence[ShownRun]) -> Iterator[Decision]:
    """Ask at the most streams, and at the longest context, that all swept runs have.

    The first is of several users where there are any.
    """
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
        asked = _at(streams, context)
        yield _of_cells("Several users", told, "sweep", "decode_tok_s", asked)
    alone = [tokens for count, tokens in common if count == 1]
    if not alone or max(alone) == min(tokens for _, tokens in common):
        return
    longest = max(alone)
    told, asked = f"{condition(longest)}, one request", _at(1, longest)
    speed = f"{told}, tok/s decoding"
    yield _of_cells("Long context", speed, "sweep", "stream_decode_tok_s", asked)
    waited = f"{told}, s to the first token"
    read = partial(_mean, suite="sweep", metric="ttft_p50_s", is_asked=asked)
    judge = partial(_of_one, suite="sweep", metric="ttft_p50_s", is_asked=asked)
    yield Decision("Long context, wait", waited, read, judge, 2, lower_is_better=True)


def _of_cells(
    title: str, told: str, suite: str, metric: str, is_asked: Callable[[Asked], bool]
) -> Decision:
    read = partial(_mean, suite=suite, metric=metric, is_asked=is_asked)
    judge = partial(_of_one, suite=suite, metric=metric, is_asked=is_asked)
    return Decision(title, told, read, judge)


def _alone(cell: Asked) -> bool:
    return cell.concurrency == 1


def _agent(cell: Asked) -> bool:
    return cell.prompt == AGENT and cell.concurrency == 1


def _at(streams: int, context: int) -> Callable[[Asked], bool]:
    return lambda cell: (cell.concurrency, cell.context_tokens or 0) == (streams, context)


def _mean(run: Run, *, suite: str, metric: str, is_asked: Callable[[Asked], bool]) -> float | None:
    """Return the mean over the cells; None where one lacks the figure."""
    found = run.suite(suite)
    is_closed = found is not None and found.asking is Asking.CLOSED_LOOP
    cells = [it for it in found.cells if is_asked(it)] if found and is_closed else []
    told = [cell.statistics.get(metric) for cell in cells]
    means = [summary.mean for summary in told if summary is not None and plottable(summary.mean)]
    return statistics.fmean(means) if means and len(means) == len(cells) else None


def _over_prompts(pair: Pair) -> RatioEstimate | None:
    for it in pair.compared.overall:
        if (it.suite, it.metric) == ("five", "end_to_end_tok_s"):
            return it.estimate
    return None


def _of_one(
    pair: Pair, *, suite: str, metric: str, is_asked: Callable[[Asked], bool]
) -> RatioEstimate | None:
    for found in pair.compared.differences:
        if (found.suite, found.metric) == (suite, metric) and is_asked(found):
            return found.estimate
    return None
