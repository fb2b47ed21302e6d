"""A comparison in words and as plain values."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.bench.quality.comparison import Comparison
    from sparkdeploy.bench.quality.intervals import Estimate


def comparison_lines(comparison: Comparison, failed: Sequence[str] | None) -> Iterator[str]:
    """Yield the report; `failed` are the gate's sentences, None when there was no gate."""
    texts = len(comparison.texts)
    yield (
        f"{comparison.second} beside {comparison.first}: {comparison.positions} positions of "
        f"{texts} text{'s' if texts != 1 else ''}"
    )
    yield from _figure_lines(comparison)
    yield from _greedy_lines(comparison)
    if failed is not None:
        yield "gate: passed" if not failed else f"gate: {'; '.join(failed)}"


def comparison_as_dict(comparison: Comparison, failed: Sequence[str] | None) -> dict[str, Any]:
    """Return the figures as plain values; an interval without an end has null there."""
    return {
        "first": comparison.first,
        "second": comparison.second,
        "positions": comparison.positions,
        "top1_agreement": _as_dict(comparison.top1_agreement),
        "mean_kl_nats": _as_dict(comparison.mean_kl_nats),
        "p99_kl_nats": comparison.p99_kl_nats,
        "mean_unseen_probability": comparison.mean_unseen,
        "perplexity": {
            "first": _finite(_exp(comparison.first_nats)),
            "second": _finite(_exp(comparison.second_nats)),
            "change": _as_dict(comparison.perplexity_change),
        },
        "drift_nats": _as_dict(comparison.drift_nats),
        "greedy": [
            {
                "text": text.name,
                "tokens": text.greedy_tokens,
                "first_difference": text.first_difference,
            }
            for text in comparison.texts
        ],
        "gate": None if failed is None else {"passed": not failed, "failures": list(failed)},
    }


def _figure_lines(comparison: Comparison) -> Iterator[str]:
    yield f"  top-1 agreement  {_with_interval(comparison.top1_agreement, _percent)}"
    kl = _with_interval(comparison.mean_kl_nats, _nats)
    yield f"  mean KL          {kl} nats, at least; p99 {comparison.p99_kl_nats:.5f}"
    yield (
        f"                   {comparison.mean_unseen:.2%} of the first's probability lies outside "
        "the tokens both told and counts as one"
    )
    before, after = (_exp(nats) for nats in (comparison.first_nats, comparison.second_nats))
    change = _with_interval(comparison.perplexity_change, _signed_percent)
    yield f"  perplexity       {before:.5g} -> {after:.5g}: {change}"
    drift = _with_interval(comparison.drift_nats, _nats)
    yield f"  drift            {drift} nats on the texts' own tokens"


def _greedy_lines(comparison: Comparison) -> Iterator[str]:
    parted, texts = comparison.parted, len(comparison.texts)
    most = max((text.greedy_tokens for text in comparison.texts), default=0)
    if not parted:
        yield f"  greedy text      the same in all {texts}, {most} tokens each"
        return
    yield (
        f"  greedy text      the same in {texts - len(parted)} of {texts}; the others part at "
        f"token {parted[0] + 1} at the earliest, {statistics.median(parted) + 1:g} in the middle"
    )


def _with_interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return f"{show(estimate.value)} (one text: no interval)"
    return f"{show(estimate.value)} ({show(estimate.low)} to {show(estimate.high)})"


def _percent(value: float) -> str:
    return f"{value:.2%}"


def _signed_percent(value: float) -> str:
    return f"{value:+.2%}"


def _nats(value: float) -> str:
    return f"{value:.5f}"


def _exp(nats: float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def _as_dict(estimate: Estimate) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in estimate._asdict().items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
