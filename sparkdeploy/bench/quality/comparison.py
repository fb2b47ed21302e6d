"""Two captures beside each other: figures with intervals, the gate, and results that are kept."""

import hashlib
import math
import random
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sparkdeploy.bench.figures import Z95, Estimate
from sparkdeploy.bench.files import json_text, read_versioned, write_private_json
from sparkdeploy.bench.quality.capture import Capture, CaptureOrigin, served_of
from sparkdeploy.bench.record import Run
from sparkdeploy.errors import BenchError

LEAST_REST = 1e-9
"""A remainder below this is rounding: told log-probabilities add up to 1 only roughly."""
RESAMPLES = 2000
_SEED = 20261121


def proportion(successes: int, trials: int) -> Estimate:
    """Return a share with Wilson's score interval, which stays honest at 0 and 1.

    `(p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)` (Wilson 1927). It takes trials as
    independent; positions of one text are not quite, so it is a little too narrow.
    """
    share = successes / trials
    square = Z95**2 / trials
    centre = (share + square / 2) / (1 + square)
    spread = Z95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials)) / (1 + square)
    low = 0.0 if successes == 0 else centre - spread
    high = 1.0 if successes == trials else centre + spread
    return Estimate(share, low, high)


def mean_over_texts(texts: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of all values with a percentile bootstrap interval over whole texts.

    Values of one text hang together, so texts are drawn with replacement, not values (the cluster
    bootstrap: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8 and 13).
    One text alone says nothing about others: it has no interval.
    """
    sums = [(math.fsum(values), len(values)) for values in texts if values]
    mean = math.fsum(total for total, _ in sums) / sum(count for _, count in sums)
    if len(sums) < 2:
        return Estimate(mean)
    # Not for secrets: the same captures must give the same interval on every machine.
    source = random.Random(_SEED)  # noqa: S311
    means = sorted(_resampled_mean(sums, source) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * 0.025)
    return Estimate(mean, means[tail], means[-1 - tail])


def _resampled_mean(sums: Sequence[tuple[float, int]], source: random.Random) -> float:
    drawn = source.choices(sums, k=len(sums))
    return sum(total for total, _ in drawn) / sum(count for _, count in drawn)


class Divergence(NamedTuple):
    """The Kullback-Leibler divergence of two distributions of which only the top is known."""

    nats: float
    """A lower bound of the whole divergence; it is exact when `unseen` is 0."""
    unseen: float
    """The first model's probability of all tokens that not both models told."""
    most_nats: float
    """The whole divergence is no more than this, provided that the logarithms of the two models'
    ratios differ among the untold tokens by no more than they do among the told ones."""


def divergence(first: Mapping[int, float], second: Mapping[int, float]) -> Divergence:
    """Return KL(first || second) over the tokens that both tell, and one bucket for all others.

    `KL = sum_x p(x) ln(p(x) / q(x))` (Kullback and Leibler 1951). Tokens that only one model tells
    are put into one bucket with the rest of the vocabulary. Merging outcomes never raises a
    divergence (the log-sum inequality; Cover and Thomas, Elements of Information Theory, 2.7), so
    the result is a lower bound. What it misses is `unseen` times the divergence within the bucket.
    Both arguments hold natural log-probabilities by token.

    The bound from above is worst for two outcomes, whose ratios are `e^m` and `e^-m`, where m is
    the largest distance of a told token's ln(p/q) from the bucket's own: `m tanh(m / 2)` within
    the bucket.
    """
    shared = first.keys() & second.keys()
    seen_p = math.fsum(math.exp(first[token]) for token in shared)
    seen_q = math.fsum(math.exp(second[token]) for token in shared)
    rest_p, rest_q = (max(1.0 - seen, LEAST_REST) for seen in (seen_p, seen_q))
    terms = [math.exp(first[token]) * (first[token] - second[token]) for token in shared]
    terms.append(rest_p * math.log(rest_p / rest_q))
    # A sum of rounded terms may fall a hair under the zero that the true one never crosses.
    nats = max(math.fsum(terms), 0.0)
    if rest_p == LEAST_REST:
        return Divergence(nats, 0.0, nats)
    bucket = math.log(rest_p / rest_q)
    spreads = [abs(first[token] - second[token] - bucket) for token in shared]
    # Where nothing was told by both, nothing bounds what they did not tell.
    widest = max(spreads, default=math.inf)
    return Divergence(nats, rest_p, nats + rest_p * widest * math.tanh(widest / 2))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the index of the first token that differs; None when the shorter one holds out."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


@dataclass(frozen=True, slots=True)
class GreedyText:
    """How both go on with one text."""

    text: str
    tokens: int
    first_difference: int | None


@dataclass(frozen=True, slots=True)
class QualityFigures:
    """One side's answers beside another's, which count as the truth; docs/bench.md has each."""

    against: str
    """The other side's name: its recipe's, where it has one."""
    positions: int
    top1_agreement: Estimate
    mean_kl_nats: Estimate
    most_mean_kl_nats: float | None
    """The mean of the bounds from above; what the gate judges."""
    perplexity_change: Estimate
    """Perplexity of the second over the first's, less 1: 0.01 is one per cent worse."""
    drift_nats: Estimate
    """Mean of |difference of ln p| of the texts' tokens: seen even where a wide margin decides."""
    first_perplexity: float | None = None
    """Exponential of the mean of -ln p of the texts' tokens; None beyond what a float holds."""
    second_perplexity: float | None = None
    p99_kl_nats: float | None = None
    """The divergence that one position in a hundred exceeds (nearest rank)."""
    mean_unseen_probability: float | None = None
    """The mean probability outside the tokens both told: what KL may have missed."""
    greedy: tuple[GreedyText, ...] = ()


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What `--gate` allows. The defaults are this project's choice, not a law of nature."""

    min_top1_agreement: float = 0.97
    max_mean_kl_nats: float = 0.01
    max_perplexity_rise: float = 0.01
    max_drift_nats: float = math.inf


def compare(first: Capture, second: Capture) -> QualityFigures:
    """BenchError for other tokens, whose probabilities have nothing to do with each other."""
    if first.fingerprint != second.fingerprint:
        raise BenchError(
            f"{first.label} and {second.label} were not asked the same tokens",
            hint="take both captures with the same --texts from models with the same tokenizer",
        )
    if not any(text.positions for text in first.texts):
        raise BenchError(f"{first.label} holds no positions to compare")
    sides = [*zip(first.texts, second.texts, strict=True)]
    pairs = [[*zip(one.positions, other.positions, strict=True)] for one, other in sides]
    agrees = [one.best == other.best for text in pairs for one, other in text]
    apart = [[divergence(one.told, other.told) for one, other in text] for text in pairs]
    every = [item for text in apart for item in text]
    shifts = [[one.logprob - other.logprob for one, other in text] for text in pairs]
    shift = mean_over_texts(shifts)
    most_nats = statistics.fmean(item.most_nats for item in every)
    return QualityFigures(
        against=first.label,
        positions=len(agrees),
        top1_agreement=proportion(sum(agrees), len(agrees)),
        mean_kl_nats=mean_over_texts([[item.nats for item in text] for text in apart]),
        most_mean_kl_nats=most_nats if math.isfinite(most_nats) else None,
        # A monotone function of the mean: the ends of the interval go through it as they are.
        perplexity_change=Estimate(*map(_growth, (shift.value, shift.low, shift.high))),
        drift_nats=mean_over_texts([[abs(nats) for nats in text] for text in shifts]),
        greedy=tuple(
            GreedyText(
                one.name,
                min(len(one.greedy_ids), len(other.greedy_ids)),
                first_difference(one.greedy_ids, other.greedy_ids),
            )
            for one, other in sides
        ),
        first_perplexity=_perplexity(first),
        second_perplexity=_perplexity(second),
        p99_kl_nats=sorted(item.nats for item in every)[math.ceil(0.99 * len(every)) - 1],
        mean_unseen_probability=statistics.fmean(item.unseen for item in every),
    )


def failures(figures: QualityFigures, thresholds: Thresholds) -> Iterator[str]:
    """Yield what is worse than the thresholds allow: what is unknown must let no model through."""
    agreement, kl = figures.top1_agreement, figures.mean_kl_nats
    if agreement.value is None or agreement.value < thresholds.min_top1_agreement:
        found = Estimate(agreement.value).text(".2%")
        yield f"top-1 agreement {found} is below {thresholds.min_top1_agreement:.2%}"
    most = figures.most_mean_kl_nats
    if _is_above(most, thresholds.max_mean_kl_nats):
        least, end = Estimate(kl.value).text(".5f"), Estimate(most).text(".5f")
        found = f"mean KL {least} nats" if most == kl.value else f"mean KL of {least} to {end} nats"
        yield f"{found} is above {thresholds.max_mean_kl_nats:g}"
    rise = figures.perplexity_change.value
    if _is_above(rise, thresholds.max_perplexity_rise):
        found = Estimate(rise).text(".2%")
        yield f"perplexity rose by {found}, above {thresholds.max_perplexity_rise:.2%}"
    drift = figures.drift_nats.value
    if _is_above(drift, thresholds.max_drift_nats):
        found = Estimate(drift).text(".4f")
        yield f"drift {found} nats is above {thresholds.max_drift_nats:g}"


def _is_above(value: float | None, limit: float) -> bool:
    return limit < math.inf and (value is None or value > limit)


def _perplexity(capture: Capture) -> float | None:
    nats = [-item.logprob for text in capture.texts for item in text.positions]
    growth = _growth(statistics.fmean(nats))
    return growth + 1 if growth is not None else None


def _growth(nats: float | None) -> float | None:
    try:
        return math.expm1(nats) if nats is not None else None
    except OverflowError:
        return None


def comparison_lines(
    figures: QualityFigures, second: str, failed: Sequence[str] | None
) -> Iterator[str]:
    """Yield the report; `failed` are the gate's sentences, None when there was no gate."""
    texts = f"{len(figures.greedy)} text{'s' if len(figures.greedy) != 1 else ''}"
    yield f"{second} beside {figures.against}: {figures.positions} positions of {texts}"
    yield f"  top-1 agreement  {_with_interval(figures.top1_agreement, '.2%')}"
    most, p99 = (
        Estimate(it).text(".5f") for it in (figures.most_mean_kl_nats, figures.p99_kl_nats)
    )
    yield (
        f"  mean KL          {_with_interval(figures.mean_kl_nats, '.5f')} nats, at least, and "
        f"{most} at most; p99 {p99}"
    )
    yield (
        f"                   {figures.mean_unseen_probability:.2%} of the first's probability "
        "lies outside the tokens both told and counts as one"
    )
    sides = (figures.first_perplexity, figures.second_perplexity)
    both = " -> ".join(Estimate(side).text(".5g") for side in sides)
    yield f"  perplexity       {both}: {_with_interval(figures.perplexity_change, '+.2%')}"
    drift = _with_interval(figures.drift_nats, ".5f")
    yield f"  drift            {drift} nats on the texts' own tokens"
    yield from _greedy_lines(figures.greedy)
    if failed is not None:
        yield "gate: passed" if not failed else f"gate: {'; '.join(failed)}"


def comparison_as_dict(
    figures: QualityFigures, second: str, failed: Sequence[str] | None
) -> dict[str, Any]:
    """Return the figures as plain values; an interval without an end has null there."""
    gate = None if failed is None else {"passed": not failed, "failures": list(failed)}
    return {**asdict(figures), "second": second, "gate": gate}


def _greedy_lines(greedy: Sequence[GreedyText]) -> Iterator[str]:
    texts = len(greedy)
    places = (item.first_difference for item in greedy)
    parted = sorted(at for at in places if at is not None)
    most = max((item.tokens for item in greedy), default=0)
    if not parted:
        yield f"  greedy text      the same in all {texts}, {most} tokens each"
        return
    yield (
        f"  greedy text      the same in {texts - len(parted)} of {texts}; the others part at "
        f"token {parted[0] + 1} at the earliest, {statistics.median(parted) + 1:g} in the middle"
    )


def _with_interval(estimate: Estimate, form: str) -> str:
    note = " (one text: no interval)" if estimate.low is None or estimate.high is None else ""
    return estimate.text(form) + note


SCHEMA_VERSION = 1
KIND = "sparkdeploy quality result"


@dataclass(frozen=True, slots=True)
class QualityResult:
    """One side beside another, and what the gate says of it."""

    taken_at: str
    reference: CaptureOrigin
    candidate: CaptureOrigin
    figures: QualityFigures
    failures: tuple[str, ...]
    """What is worse than `limits` allow, one sentence each; none when the gate is passed."""
    limits: Mapping[str, float] = field(default_factory=dict)
    kind: str = KIND
    schema: int = SCHEMA_VERSION


def judged(
    figures: QualityFigures,
    reference: CaptureOrigin,
    candidate: CaptureOrigin,
    taken_at: str,
    thresholds: Thresholds,
) -> QualityResult:
    """Return what the gate says of the candidate beside the reference."""
    return QualityResult(
        taken_at=taken_at,
        reference=reference,
        candidate=candidate,
        figures=replace(figures, against=reference.name),
        failures=tuple(failures(figures, thresholds)),
        limits={name: it for name, it in asdict(thresholds).items() if math.isfinite(it)},
    )


def keep(result: QualityResult, folder: Path) -> Path:
    """Write it, whole or not at all, under the name of its content."""
    digest = hashlib.sha256(json_text(result, QualityResult).encode()).hexdigest()[:12]
    moment = re.sub(r"[^0-9T]", "", result.taken_at.partition("+")[0])[:15]
    path = folder / f"{moment}-{digest}.json"
    write_private_json(path, result, QualityResult)
    return path


def read_result(path: Path) -> QualityResult:
    result: QualityResult = read_versioned(
        path, QualityResult, "quality result", SCHEMA_VERSION, KIND
    )
    return result


def newest_of_each(
    results: Iterable[QualityResult], runs: Sequence[Run]
) -> tuple[QualityResult | None, ...]:
    """Return for each run its newest result: beside the first run where there is one."""
    known = sorted(results, key=lambda item: item.taken_at)
    served = [served_of(run.origin).fingerprint for run in runs]
    # The last of these is the newest beside the first run, else the newest.
    known.sort(key=lambda item: item.reference.fingerprint in served[:1])
    newest = {item.candidate.fingerprint: item for item in known}
    return tuple(newest.get(fingerprint) for fingerprint in served)
