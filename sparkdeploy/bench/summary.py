"""Quantiles of many values, and what a few rounds say about their mean."""

from __future__ import annotations

import math
import statistics
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from sparkdeploy.bench.record import Quantiles, Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONFIDENCE = 0.95


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Interpolate between the two nearest ranks (Hyndman and Fan's type 7, numpy's default).

    `ordered` is ascending and not empty.
    """
    rank = (len(ordered) - 1) * fraction
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """Return the quantiles of all values, or None when there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Quantiles(
        count=len(ordered),
        p50=quantile(ordered, 0.50),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        mean=statistics.fmean(ordered),
        max=ordered[-1],
    )


def summarise(values: Sequence[float]) -> Summary | None:
    """Return mean, median and, from two values on, their spread and the mean's interval."""
    if not values:
        return None
    mean, median = statistics.fmean(values), statistics.median(values)
    if len(values) == 1:
        return Summary(1, mean, median)
    deviation = statistics.stdev(values)
    half = t_quantile(len(values) - 1) * deviation / math.sqrt(len(values))
    return Summary(len(values), mean, median, deviation, mean - half, mean + half)


def gaps(moments: Iterable[float]) -> list[float]:
    """Return the differences between neighbours."""
    return [later - earlier for earlier, later in pairwise(moments)]


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans (start, end)."""
    total_s, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total_s += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total_s


@cache
def t_quantile(degrees: int) -> float:
    """Return the t that |T| stays below with probability 0.95, for `degrees` of freedom >= 1."""
    low, high = 0.0, 16.0  # 12.71 for one degree, less for more
    for _ in range(60):
        middle = (low + high) / 2
        if _probability_below(middle, degrees) < CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _probability_below(t: float, degrees: int) -> float:
    """Return P(|T| <= t): the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        term, total = cosine, 0.0
        for odd in range(1, degrees - 1, 2):
            total += term
            term *= cosine * cosine * (odd + 1) / (odd + 2)
        return 2 / math.pi * (angle + sine * total)
    term, total = 1.0, 0.0
    for even in range(2, degrees + 1, 2):
        total += term
        term *= cosine * cosine * (even - 1) / even
    return sine * total
