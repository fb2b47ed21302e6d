"""Two captures held against each other: the figures, their intervals, and the gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.quality.divergence import divergence, first_difference
from sparkdeploy.bench.quality.intervals import Estimate, mean_over_texts, proportion
from sparkdeploy.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.bench.quality.capture import Capture, Position, TextCapture


@dataclass(frozen=True, slots=True)
class TextComparison:
    """One text, position by position; all tuples have one value a position."""

    name: str
    agrees: tuple[bool, ...]
    """Whether both models think the same token likeliest."""
    kl_nats: tuple[float, ...]
    unseen: tuple[float, ...]
    """The first model's probability that lies outside the tokens both told."""
    shift_nats: tuple[float, ...]
    """ln p of the text's own token: the first model's less the second's. Positive: it got worse."""
    first_difference: int | None
    """Where greedy continuations part; None when they do not."""
    greedy_tokens: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second capture beside the first, which counts as the truth."""

    first: str
    second: str
    texts: tuple[TextComparison, ...]
    first_nats: float
    """Mean of -ln p of the texts' tokens; its exponential is the perplexity."""
    second_nats: float
    top1_agreement: Estimate
    mean_kl_nats: Estimate
    perplexity_change: Estimate
    """Perplexity of the second over the first's, less 1: 0.01 is one per cent worse."""
    drift_nats: Estimate
    """Mean of |difference of ln p| of the texts' tokens: seen even where a wide margin decides."""

    @property
    def positions(self) -> int:
        """Return how many positions were compared."""
        return sum(len(text.agrees) for text in self.texts)

    @property
    def p99_kl_nats(self) -> float:
        """Return the divergence that one position in a hundred exceeds (nearest rank)."""
        values = sorted(value for text in self.texts for value in text.kl_nats)
        return values[math.ceil(0.99 * len(values)) - 1]

    @property
    def mean_unseen(self) -> float:
        """Return the mean probability outside the tokens both told: what KL may have missed."""
        values = [value for text in self.texts for value in text.unseen]
        return math.fsum(values) / len(values)

    @property
    def parted(self) -> tuple[int, ...]:
        """Return where greedy texts part, earliest first; texts that stay equal are left out."""
        found = (text.first_difference for text in self.texts)
        return tuple(sorted(at for at in found if at is not None))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What `--gate` allows. The defaults are this project's choice, not a law of nature."""

    min_top1_agreement: float = 0.97
    max_mean_kl_nats: float = 0.01
    max_perplexity_rise: float = 0.01
    max_drift_nats: float = math.inf


def compare(first: Capture, second: Capture) -> Comparison:
    """Hold two captures of the same texts against each other.

    Raises BenchError when their tokens differ (other texts, or another tokenizer): probabilities
    of different tokens have nothing to do with each other.
    """
    _refuse_other_texts(first, second)
    texts = tuple(_compare_text(a, b) for a, b in zip(first.texts, second.texts, strict=True))
    positions = sum(len(text.agrees) for text in texts)
    shift = mean_over_texts([text.shift_nats for text in texts])
    return Comparison(
        first=first.label,
        second=second.label,
        texts=texts,
        first_nats=_mean_nats(first),
        second_nats=_mean_nats(second),
        top1_agreement=proportion(sum(sum(text.agrees) for text in texts), positions),
        mean_kl_nats=mean_over_texts([text.kl_nats for text in texts]),
        # A monotone function of the mean: the ends of the interval go through it as they are.
        perplexity_change=Estimate(*(_growth(nats) for nats in shift)),
        drift_nats=mean_over_texts([[abs(nats) for nats in t.shift_nats] for t in texts]),
    )


def failures(comparison: Comparison, thresholds: Thresholds) -> Iterator[str]:
    """Yield what is worse than the thresholds allow, one sentence each; estimates are judged."""
    agreement = comparison.top1_agreement.value
    if agreement < thresholds.min_top1_agreement:
        yield f"top-1 agreement {agreement:.2%} is below {thresholds.min_top1_agreement:.2%}"
    kl = comparison.mean_kl_nats.value
    if kl > thresholds.max_mean_kl_nats:
        yield f"mean KL {kl:.5f} nats is above {thresholds.max_mean_kl_nats:g}"
    rise = comparison.perplexity_change.value
    if rise > thresholds.max_perplexity_rise:
        yield f"perplexity rose by {rise:.2%}, above {thresholds.max_perplexity_rise:.2%}"
    drift = comparison.drift_nats.value
    if drift > thresholds.max_drift_nats:
        yield f"drift {drift:.4f} nats is above {thresholds.max_drift_nats:g}"


def _compare_text(first: TextCapture, second: TextCapture) -> TextComparison:
    pairs: list[tuple[Position, Position]] = list(
        zip(first.positions, second.positions, strict=True)
    )
    apart = [divergence(a.told, b.told) for a, b in pairs]
    return TextComparison(
        name=first.name,
        agrees=tuple(a.best == b.best for a, b in pairs),
        kl_nats=tuple(item.nats for item in apart),
        unseen=tuple(item.unseen for item in apart),
        shift_nats=tuple(a.logprob - b.logprob for a, b in pairs),
        first_difference=first_difference(first.greedy_ids, second.greedy_ids),
        greedy_tokens=min(len(first.greedy_ids), len(second.greedy_ids)),
    )


def _refuse_other_texts(first: Capture, second: Capture) -> None:
    if first.fingerprint != second.fingerprint:
        raise BenchError(
            f"{first.label} and {second.label} were not asked the same tokens",
            hint="take both captures with the same --texts from models with the same tokenizer",
        )
    if not any(text.positions for text in first.texts):
        raise BenchError(f"{first.label} holds no positions to compare")


def _mean_nats(capture: Capture) -> float:
    values = [-position.logprob for text in capture.texts for position in text.positions]
    return math.fsum(values) / len(values)


def _growth(nats: float) -> float:
    try:
        return math.expm1(nats)
    except OverflowError:
        return math.inf
