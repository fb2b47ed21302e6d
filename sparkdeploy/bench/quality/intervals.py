"""95 % intervals for what a comparison estimates. Pure, and the same on every machine."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES = 2000
_SEED = 20261121
_Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""


class Estimate(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


def proportion(successes: int, trials: int) -> Estimate:
    """Return a share with Wilson's score interval, which stays honest at 0 and 1.

    `(p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)` (Wilson 1927). It takes trials as
    independent; positions of one text are not quite, so it is a little too narrow.
    """
    share = successes / trials
    square = _Z95**2 / trials
    centre = (share + square / 2) / (1 + square)
    spread = _Z95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials)) / (1 + square)
    low = 0.0 if successes == 0 else centre - spread
    high = 1.0 if successes == trials else centre + spread
    return Estimate(share, low, high)


def mean_over_texts(texts: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of all values with a percentile bootstrap interval over whole texts.

    Values of one text hang together, so texts are drawn with replacement, not values (the cluster
    bootstrap: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8 and 13).
    One text alone says nothing about others: its interval is infinite.
    """
    sums = [(math.fsum(values), len(values)) for values in texts if values]
    mean = math.fsum(total for total, _ in sums) / sum(count for _, count in sums)
    if len(sums) < 2:
        return Estimate(mean, -math.inf, math.inf)
    # Not for secrets: the same captures must give the same interval on every machine.
    source = random.Random(_SEED)  # noqa: S311
    means = sorted(_resampled_mean(sums, source) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * 0.025)
    return Estimate(mean, means[tail], means[-1 - tail])


def _resampled_mean(sums: Sequence[tuple[float, int]], source: random.Random) -> float:
    drawn = source.choices(sums, k=len(sums))
    return sum(total for total, _ in drawn) / sum(count for _, count in drawn)
