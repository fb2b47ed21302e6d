"""From counted answers to figures: of a request, of a round, of a cell. docs/bench.md defines them.

A failed request is counted, and no figure of any other knows of it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.record import (
    METRICS,
    Cell,
    Latency,
    MachineWatch,
    RequestSample,
    RoundResult,
    ServerDelta,
    Summary,
)
from sparkdeploy.bench.summary import covered_s, gaps, quantiles, summarise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sparkdeploy.bench.answers import Answer, Exchange
    from sparkdeploy.bench.suites import Condition

WARM_UP = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One request: its figures, and the moments they come from (the client's clock)."""

    sample: RequestSample
    sent_s: float
    moments_s: tuple[float, ...] = ()
    """When tokens arrived; empty for a failed request."""

    @property
    def is_counted(self) -> bool:
        """Say whether it has figures."""
        return self.sample.failure is None


def measure(
    exchange: Exchange, answer: Answer, *, prompt: str, number: int, stream: int, began_s: float
) -> Measured:
    """Return one request's figures; `number` is the round's, `began_s` when the suite began."""
    sent_s = exchange.sent_s
    if answer.failure is not None:
        sample = RequestSample(
            round=number,
            stream=stream,
            prompt=prompt,
            sent_s=sent_s - began_s,
            duration_s=exchange.ended_s - sent_s,
            failure=answer.failure,
        )
        return Measured(sample, sent_s)
    moments = tuple(item.at_s for item in answer.tokens)
    first_tokens = answer.tokens[0].tokens
    decoding_s = moments[-1] - moments[0]
    decoded = answer.completion_tokens - first_tokens
    can_decode = decoded > 0 and decoding_s > 0
    duration_s = moments[-1] - sent_s
    sample = RequestSample(
        round=number,
        stream=stream,
        prompt=prompt,
        sent_s=sent_s - began_s,
        duration_s=duration_s,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        first_arrival_tokens=first_tokens,
        arrivals=len(moments),
        ttft_s=moments[0] - sent_s,
        tpot_s=decoding_s / decoded if can_decode else None,
        gap_s=quantiles(gaps(moments)),
        end_to_end_tok_s=_rate(answer.completion_tokens, duration_s),
        decode_tok_s=decoded / decoding_s if can_decode else None,
        counting=answer.counting,
        finish_reason=answer.finish_reason,
    )
    return Measured(sample, sent_s, moments)


def round_result(number: int, measured: Sequence[Measured]) -> RoundResult:
    """Return what all streams of a round did together; `measured` is not empty."""
    counted = [item for item in measured if item.is_counted]
    samples = [item.sample for item in counted]
    duration_s = _duration_s(counted)
    tokens = sum(sample.completion_tokens for sample in samples)
    decoded = sum(sample.completion_tokens - sample.first_arrival_tokens for sample in samples)
    decoding_s = covered_s((item.moments_s[0], item.moments_s[-1]) for item in counted)
    own = [sample.decode_tok_s for sample in samples if sample.decode_tok_s is not None]
    return RoundResult(
        round=number,
        duration_s=duration_s,
        requests=len(measured),
        failures=len(measured) - len(counted),
        prompt_tokens=sum(sample.prompt_tokens for sample in samples),
        completion_tokens=tokens,
        end_to_end_tok_s=_rate(tokens, duration_s),
        decode_tok_s=_rate(decoded, decoding_s),
        stream_decode_tok_s=statistics.fmean(own) if own else None,
        latency=latency(counted),
    )


def latency(measured: Iterable[Measured]) -> Latency:
    """Return the quantiles over all of these requests; failed ones are left out."""
    counted = [item for item in measured if item.is_counted]
    samples = [item.sample for item in counted]
    return Latency(
        ttft_s=quantiles(sample.ttft_s for sample in samples if sample.ttft_s is not None),
        tpot_s=quantiles(sample.tpot_s for sample in samples if sample.tpot_s is not None),
        gap_s=quantiles(gap for item in counted for gap in gaps(item.moments_s)),
        end_to_end_s=quantiles(sample.duration_s for sample in samples),
    )


def cell_of(
    condition: Condition,
    rounds: Mapping[int, Sequence[Measured]],
    *,
    server: ServerDelta | None,
    machine: MachineWatch | None,
) -> Cell:
    """Return everything about one condition; round 0 is the warm-up."""
    counting = {number: items for number, items in sorted(rounds.items()) if number != WARM_UP}
    results = tuple(round_result(number, items) for number, items in counting.items())
    return Cell(
        prompt=condition.prompt,
        concurrency=condition.concurrency,
        max_tokens=condition.max_tokens,
        context_tokens=condition.context_tokens,
        samples=tuple(item.sample for _, items in sorted(rounds.items()) for item in items),
        rounds=results,
        latency=latency(item for items in counting.values() for item in items),
        statistics=_statistics(results),
        server=server,
        machine=machine,
    )


def figures_of(result: RoundResult) -> dict[str, float]:
    """Return a round's figures by METRICS' names; what was not measured is not there."""
    waiting = result.latency
    found = {
        "end_to_end_tok_s": result.end_to_end_tok_s,
        "decode_tok_s": result.decode_tok_s,
        "stream_decode_tok_s": result.stream_decode_tok_s,
        "ttft_p50_s": waiting.ttft_s.p50 if waiting.ttft_s else None,
        "ttft_p95_s": waiting.ttft_s.p95 if waiting.ttft_s else None,
        "tpot_p50_s": waiting.tpot_s.p50 if waiting.tpot_s else None,
        "gap_p50_s": waiting.gap_s.p50 if waiting.gap_s else None,
        "gap_p99_s": waiting.gap_s.p99 if waiting.gap_s else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _statistics(results: Sequence[RoundResult]) -> dict[str, Summary]:
    figures = [figures_of(result) for result in results]
    summaries = {
        name: summarise([item[name] for item in figures if name in item]) for name in METRICS
    }
    return {name: summary for name, summary in summaries.items() if summary is not None}


def _duration_s(counted: Sequence[Measured]) -> float:
    if not counted:
        return 0.0
    last = max(item.moments_s[-1] for item in counted)
    return last - min(item.sent_s for item in counted)


def _rate(tokens: float, duration_s: float) -> float | None:
    return tokens / duration_s if tokens and duration_s > 0 else None
