"""From counted answers to figures; docs/bench.md defines them. A failed request is in none."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from sparkdeploy.bench.answers import Exchange, read_answer
from sparkdeploy.bench.record import (
    Cell,
    Latency,
    LoadResult,
    Quantiles,
    RequestSample,
    RoundResult,
    Summary,
)

WARM_UP = 0
Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""
_T95 = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004),
    *(2.262157, 2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905),
)
"""Student's t by degrees of freedom, as tables have it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval; None for what is unknown or infinite."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def text(self, form: str, factor: float = 1) -> str:
        """Return `98.70% (98.00% to 99.00%)`, or the value alone where it has no interval."""
        if self.value is None:
            return "unknown"
        value = f"{self.value * factor:{form}}"
        if self.low is None or self.high is None:
            return value
        return f"{value} ({self.low * factor:{form}} to {self.high * factor:{form}})"


@dataclass(frozen=True, slots=True)
class Measured:
    """One request: its figures, and the moments they come from (the client's clock)."""

    sample: RequestSample
    sent_s: float
    moments_s: tuple[float, ...] = ()
    """When tokens arrived; empty for a failed request."""

    @property
    def is_counted(self) -> bool:
        return self.sample.failure is None


def measure(
    exchange: Exchange, *, prompt: str, number: int, stream: int, began_s: float
) -> Measured:
    """Return one request's figures; `number` is the round's, `began_s` when the suite began."""
    answer, sent_s = read_answer(exchange), exchange.sent_s
    sample = RequestSample(
        round=number,
        stream=stream,
        prompt=prompt,
        sent_s=sent_s - began_s,
        connect_s=exchange.connect_s,
        duration_s=exchange.ended_s - sent_s,
        failure=answer.failure,
    )
    if answer.failure is not None:
        return Measured(sample, sent_s)
    moments = tuple(item.at_s for item in answer.tokens)
    first_tokens = answer.tokens[0].tokens
    decoding_s = moments[-1] - moments[0]
    decoded = answer.completion_tokens - first_tokens
    can_decode = decoded > 0 and decoding_s > 0
    duration_s = moments[-1] - sent_s
    sample = replace(
        sample,
        duration_s=duration_s,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
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
    counted = [item for item in measured if item.is_counted]
    samples = [item.sample for item in counted]
    ended_s = max((item.moments_s[-1] for item in counted), default=0.0)
    duration_s = ended_s - min((item.sent_s for item in counted), default=0.0)
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
    counted = [item for item in measured if item.is_counted]
    samples = [item.sample for item in counted]
    return Latency(
        ttft_s=quantiles(sample.ttft_s for sample in samples if sample.ttft_s is not None),
        tpot_s=quantiles(sample.tpot_s for sample in samples if sample.tpot_s is not None),
        gap_s=quantiles(gap for item in counted for gap in gaps(item.moments_s)),
        end_to_end_s=quantiles(sample.duration_s for sample in samples),
    )


class Figure(NamedTuple):
    """A figure that runs are shown and compared by; a tool's figure has nothing that reads it."""

    title: str
    digits: int = 3
    of_round: Callable[[RoundResult], float | None] | None = None
    of_load: Callable[[LoadResult], float | None] | None = None


def _waits(kind: str, quantile: str) -> Callable[[RoundResult], float | None]:
    return lambda result: getattr(getattr(result.latency, kind), quantile, None)


FIGURES = {
    "end_to_end_tok_s": Figure("tok/s end to end", 2, lambda it: it.end_to_end_tok_s),
    "decode_tok_s": Figure("tok/s decode only", 2, lambda it: it.decode_tok_s),
    "stream_decode_tok_s": Figure("tok/s of each stream", 2, lambda it: it.stream_decode_tok_s),
    "prefill_tok_s": Figure("tok/s of the prompt", 2),
    "ttft_p50_s": Figure("s to first token", 3, _waits("ttft_s", "p50")),
    "ttft_p95_s": Figure("s to first token, p95", 3, _waits("ttft_s", "p95")),
    "ttft_mean_s": Figure("s to first token, mean"),
    "tpot_p50_s": Figure("s per output token", 3, _waits("tpot_s", "p50")),
    "gap_p50_s": Figure("s between arrivals", 3, _waits("gap_s", "p50")),
    "gap_p99_s": Figure("s between arrivals, p99", 3, _waits("gap_s", "p99")),
    "failed_requests": Figure("requests that failed", 0),
    "completed_per_s": Figure("requests done a second", of_load=lambda it: it.completed_per_s),
    "goodput_per_s": Figure(
        "requests within the limits a second", of_load=lambda it: it.goodput_per_s
    ),
}
COMPARED = tuple(name for name, figure in FIGURES.items() if figure.of_round or figure.of_load)


def summaries(results: Sequence[RoundResult]) -> dict[str, Summary]:
    """Return each figure of a round over all rounds; one that no round has is left out."""
    found = {}
    for name, figure in FIGURES.items():
        read = figure.of_round or (lambda _: None)
        values = [value for result in results if (value := read(result)) is not None]
        if (summary := summarise(values)) is not None:
            found[name] = summary
    return found


def value_of(cell: Cell, name: str) -> float | None:
    """Return a figure of a cell: the mean over its rounds, or its load's."""
    of_load = FIGURES[name].of_load
    if of_load is not None:
        return of_load(cell.load) if cell.load is not None else None
    return cell.statistics[name].mean if name in cell.statistics else None


def mean_of(cells: Iterable[Cell], metric: str) -> float:
    """Return the mean of the cells' means; 0 when none was measured."""
    means = [value for cell in cells if (value := value_of(cell, metric)) is not None]
    return statistics.fmean(means or (0.0,))


def _rate(tokens: float, duration_s: float) -> float | None:
    return tokens / duration_s if tokens and duration_s > 0 else None


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """Interpolate between the two nearest ranks (Hyndman and Fan's type 7, numpy's default)."""
    found = list(values)
    if not found:
        return None
    # Of one value alone all quantiles are that value.
    cuts = statistics.quantiles(found * (1 + (len(found) == 1)), n=100, method="inclusive")
    mean, most = statistics.fmean(found), max(found)
    return Quantiles(len(found), cuts[49], cuts[94], cuts[98], mean, most)


def summarise(values: Sequence[float]) -> Summary | None:
    if not values:
        return None
    mean, median = statistics.fmean(values), statistics.median(values)
    if len(values) == 1:
        return Summary(1, mean, median)
    deviation = statistics.stdev(values)
    half = t_quantile(len(values) - 1) * deviation / math.sqrt(len(values))
    return Summary(len(values), mean, median, deviation, mean - half, mean + half)


def gaps(moments: Iterable[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(moments)]


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans (start, end)."""
    total_s, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total_s += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total_s


def t_quantile(degrees: int) -> float:
    """Return the t that |T| stays below with probability 0.95, for `degrees` of freedom >= 1."""
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    # The first terms of Cornish and Fisher's expansion around the normal distribution.
    z, n = Z95, degrees
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
