"""What a load answers on the first screen: how many users, and how many agents, are served well."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.load.limits import Slo
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.report.chart import figure, load_in, plottable, rate_of
from sparkdeploy.bench.variation import RatioEstimate, ratio_of, spread_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparkdeploy.bench.compare import Side
    from sparkdeploy.bench.record import Cell, Run, SuiteResult
    from sparkdeploy.bench.report.chart import ShownRun

COUNTED = {Asking.OPEN_LOOP: "requests", Asking.CONVERSATIONS: "conversations"}


@dataclass(frozen=True, slots=True)
class LoadAsked:
    """What two loads must have in common for their figures to be compared."""

    asking: Asking
    prompts: str
    arrivals: str
    ramp_s: float
    limits_s: tuple[tuple[str, float], ...]
    wanted_share: float | None
    """Of a search for the highest rate."""


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    told: str
    read: Callable[[Run], float | None]
    is_judged: bool
    lower_is_better: bool = False

    def judged(self, base: Side, other: Side, known: Sequence[Side]) -> RatioEstimate | None:
        """Compare as `compare` does, by the variation between runs of the same machine."""
        before, after = (self._logarithms(side) for side in (base, other))
        if not before or not after:
            return None
        if not self.is_judged:
            return ratio_of(before, after, spread_of(()))
        machine = base.newest.origin.machine
        sides = {tuple(run.run_id for run in side.runs): side for side in (base, other, *known)}
        like = [side for side in sides.values() if side.newest.origin.machine == machine]
        return ratio_of(before, after, spread_of(map(self._logarithms, like)))

    def _logarithms(self, side: Side) -> list[float]:
        values = [self.read(run) for run in side.runs]
        return [math.log(value) for value in values if value is not None and value > 0]


def asked_of(suite: SuiteResult) -> LoadAsked | None:
    """Return None for a load without a rate: it was interrupted in its first."""
    loads = [cell.load for cell in suite.cells if cell.load is not None]
    if not loads:
        return None
    return LoadAsked(
        asking=suite.asking,
        prompts=suite.prompts,
        arrivals=loads[0].arrivals,
        ramp_s=loads[0].ramp_s,
        limits_s=tuple(sorted(loads[0].limits_s.items())),
        wanted_share=suite.sustained.wanted_share if suite.sustained is not None else None,
    )


def alike(runs: Sequence[ShownRun], asking: Asking) -> list[tuple[ShownRun, SuiteResult]]:
    """Return the runs whose load was asked as the first one's was, each with its load."""
    found = [(shown, suite) for shown in runs if (suite := shown.load(asking)) is not None]
    asked = next((asked for _, suite in found if (asked := asked_of(suite)) is not None), None)
    return [pair for pair in found if asked is not None and asked_of(pair[1]) == asked]


def common_rate(suites: Sequence[SuiteResult]) -> float | None:
    """Return the highest rate that all have."""
    asked = [map(rate_of, suite.cells) for suite in suites]
    rates = [set(filter(plottable, found)) for found in asked]
    common = set.intersection(*rates) if rates else set()
    return max(common, default=None)


def load_answer(runs: Sequence[ShownRun], asking: Asking) -> LoadAnswer | None:
    """Return the best that the loads can say: the highest rate that holds, goodput, or waiting."""
    suites = [suite for _, suite in alike(runs, asking)]
    asked = asked_of(suites[0]) if suites else None
    if asked is None:
        return None
    limits, counted = str(Slo(dict(asked.limits_s))), COUNTED[asking]
    source = f"a second (bench load, {asking})"
    if asked.wanted_share is not None:
        told = f"highest rate with {asked.wanted_share:.0%} within {limits}, {counted} {source}"
        return LoadAnswer(told, partial(_sustained, asked=asked), is_judged=False)
    rate = common_rate(suites)
    if rate is None:
        return None
    at = f"{rate:.3g} {counted} {source}"
    if limits:
        told = f"{at}: requests within {limits}, a second"
        read = partial(_at_rate, asked=asked, rate=rate, of_cell=_goodput)
        return LoadAnswer(told, read, is_judged=True)
    read = partial(_at_rate, asked=asked, rate=rate, of_cell=_waiting)
    told = f"{at}: s to the first token, 95th percentile"
    return LoadAnswer(told, read, is_judged=True, lower_is_better=True)


def _sustained(run: Run, *, asked: LoadAsked) -> float | None:
    """Nothing is the answer where no rate that was tried held the limits."""
    suite = load_in(run, asked.asking)
    if suite is None or suite.sustained is None or asked_of(suite) != asked:
        return None
    rate = suite.sustained.rate_per_s or 0.0
    return rate if plottable(rate) else None


def _at_rate(
    run: Run, *, asked: LoadAsked, rate: float, of_cell: Callable[[Cell], float | None]
) -> float | None:
    suite = load_in(run, asked.asking)
    if suite is None or asked_of(suite) != asked:
        return None
    found = next((of_cell(cell) for cell in suite.cells if rate_of(cell) == rate), None)
    return found if plottable(found) else None


def _goodput(cell: Cell) -> float | None:
    # Of conversations each turn is a request of its own.
    return cell.load.goodput_per_s if cell.load is not None else None


def _waiting(cell: Cell) -> float | None:
    return cell.latency.ttft_s.p95 if cell.latency.ttft_s is not None else None


def cache_hits(shown: ShownRun) -> str:
    """Return per cent of conversations' prompt tokens, at all rates; `-` where nobody told it.

    The server's answers count where they say it; else its counters, in which the ramp and other
    clients are, too.
    """
    suite = shown.load(Asking.CONVERSATIONS)
    cells = suite.cells if suite is not None else ()
    turns = [turn for cell in cells if cell.load is not None for turn in cell.load.turns]
    told = [
        (
            (turn.requests - turn.failures) * turn.cached_tokens,
            (turn.requests - turn.failures) * turn.prompt_tokens,
        )
        for turn in turns
        if turn.cached_tokens is not None and turn.prompt_tokens is not None
    ]
    if not told:
        counted = [cell.server for cell in cells if cell.server is not None]
        told = [(it.prefix_hits or 0, it.prefix_queries or 0) for it in counted]
    hits, asked = (math.fsum(values) for values in zip(*told, strict=True)) if told else (0.0, 0.0)
    return figure(100 * hits / asked) if asked > 0 else "-"
