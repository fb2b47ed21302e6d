"""What requests at one rate did together, without the ramp."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.bench.figures import WARM_UP, Measured, cell_of, latency
from sparkdeploy.bench.load.record import Asking, LoadResult, TurnResult
from sparkdeploy.bench.suites import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.bench.load.arrivals import Schedule
    from sparkdeploy.bench.load.plan import LoadPlan
    from sparkdeploy.bench.record import Cell, MachineWatch, ServerDelta

LATE_S = 0.02
STEADY = 1
"""The number of the round that counts."""


def load_cell(
    plan: LoadPlan,
    load: LoadResult,
    measured: Sequence[Measured],
    *,
    server: ServerDelta | None,
    machine: MachineWatch | None,
) -> Cell:
    rounds: dict[int, list[Measured]] = {}
    for item in measured:
        rounds.setdefault(item.sample.round, []).append(item)
    largest = max(prompt.max_tokens for prompt in plan.texts.prompts)
    condition = Condition(plan.texts.name, largest, concurrency=0)
    return replace(cell_of(condition, rounds, server=server, machine=machine), load=load)


def load_result(
    plan: LoadPlan,
    rate_per_s: float,
    came: Schedule,
    began_s: float,
    measured: Sequence[Measured],
) -> LoadResult:
    """Return the steady state of requests that came from `began_s` on, of the client's clock."""
    steady = [item for item in measured if item.sample.round != WARM_UP]
    counted = [item for item in steady if item.is_counted]
    last_s = max((_ended_s(item) for item in steady), default=began_s + came.steady_s)
    window_s = last_s - began_s - came.steady_s
    held = sum(plan.limits.holds(item.sample) for item in steady) if plan.limits else 0
    late = [item.sample.late_s for item in measured if item.sample.late_s > LATE_S]
    return LoadResult(
        arrivals=plan.coming.law.value,
        rate_per_s=rate_per_s,
        seed=plan.coming.seed,
        ramp_s=plan.coming.ramp_s,
        window_s=window_s,
        requests=len(steady),
        failures=len(steady) - len(counted),
        completed_per_s=_rate(len(counted), window_s),
        completion_tok_s=_rate(sum(item.sample.completion_tokens for item in counted), window_s),
        prompt_tok_s=_rate(sum(item.sample.prompt_tokens for item in counted), window_s),
        most_in_flight=most_at_once((item.sent_s, _ended_s(item)) for item in measured),
        limits_s=dict(plan.limits.seconds) if plan.limits else {},
        held=held,
        goodput_per_s=_rate(held, window_s) if plan.limits else None,
        late_requests=len(late),
        latest_s=max((item.sample.late_s for item in measured), default=0.0),
        turns=tuple(_turns(plan, steady)),
        unsent=len(came.moments_s) * plan.texts.turns - len(measured),
    )


def _turns(plan: LoadPlan, steady: Sequence[Measured]) -> Iterator[TurnResult]:
    if plan.texts.asking is not Asking.CONVERSATIONS:
        return
    for turn, prompt in enumerate(plan.texts.prompts, 1):
        own = [item for item in steady if item.sample.prompt == prompt.name]
        counted = [item.sample for item in own if item.is_counted]
        told = [sample.cached_tokens for sample in counted if sample.cached_tokens is not None]
        waits = latency(own)
        yield TurnResult(
            turn=turn,
            requests=len(own),
            failures=len(own) - len(counted),
            prompt_tokens=_mean([sample.prompt_tokens for sample in counted]),
            cached_tokens=_mean(told) if len(told) == len(counted) else None,
            ttft_s=waits.ttft_s,
            tpot_s=waits.tpot_s,
        )


def _mean(values: Sequence[int]) -> float | None:
    return statistics.fmean(values) if values else None


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many spans (start, end) overlap at most; one that ends where another starts does
    not."""
    changes = [change for start, end in spans for change in ((start, 1), (end, -1))]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _ended_s(item: Measured) -> float:
    return item.moments_s[-1] if item.moments_s else item.sent_s + item.sample.duration_s


def _rate(amount: float, window_s: float) -> float:
    return amount / window_s if window_s > 0 else 0.0
