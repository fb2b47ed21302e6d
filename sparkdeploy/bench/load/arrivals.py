"""When requests come: by Poisson's law or evenly, as `vllm bench serve` has it for a seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_SEED = 2**32 - 1
_WORDS = 624
"""Of the state of a Mersenne Twister."""


class Law(StrEnum):
    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Moments in seconds since the beginning, ascending; those before `steady_s` are the ramp."""

    moments_s: tuple[float, ...]
    steady_s: float

    def is_steady(self, index: int) -> bool:
        return self.moments_s[index] >= self.steady_s

    @property
    def steady_requests(self) -> int:
        return sum(moment_s >= self.steady_s for moment_s in self.moments_s)


def schedule(
    law: Law, rate_per_s: float, requests: int, *, seed: int = 0, ramp_s: float = 0.0
) -> Schedule:
    """Return moments for about `requests` after the ramp, and half as dense ones in it.

    During the ramp the rate rises evenly from nothing to `rate_per_s`. For Poisson's law that is
    its time stretched: what was expected until a moment stays what it was.
    """
    total = requests + round(rate_per_s * ramp_s / 2)
    moments = steady_moments(law, rate_per_s, total, seed=seed)
    return Schedule(tuple(_stretched(moment, ramp_s) for moment in moments), ramp_s)


def steady_moments(law: Law, rate_per_s: float, count: int, *, seed: int = 0) -> list[float]:
    """Return `count` >= 1 moments at one rate, the last of them at `count` / `rate_per_s`.

    They are those of `vllm bench serve --request-rate R --seed S` (vllm/benchmarks/serve.py,
    get_request of vLLM 0.25.1 and 0.33.0): intervals of a gamma law with burstiness 1, added up
    and scaled so that the last one comes when its rate says. Constant is its burstiness infinity.
    """
    if law is Law.CONSTANT:
        intervals: Sequence[float] = [1 / rate_per_s] * count
    else:
        dice = numpy_dice(seed)
        # numpy's legacy gamma of shape 1: -log(1 - U), scaled.
        intervals = [-math.log(1 - dice.random()) / rate_per_s for _ in range(count)]
    moments = list(accumulate(intervals))
    scale = count / rate_per_s / moments[-1]
    return [moment * scale for moment in moments]


def numpy_dice(seed: int) -> random.Random:
    """Return dice whose `random` gives what `numpy.random.seed(seed)` makes numpy's give.

    Both are the same Mersenne Twister, of which Python spreads a seed over the state in another
    way; numpy does it as its authors did in 2002 (init_genrand). 0 <= seed < 2**32.
    """
    words = [seed]
    for index in range(1, _WORDS):
        before = words[-1]
        words.append((1812433253 * (before ^ (before >> 30)) + index) % 2**32)
    dice = random.Random()  # noqa: S311 - moments, not a secret
    dice.setstate((3, (*words, _WORDS), None))
    return dice


def _stretched(moment_s: float, ramp_s: float) -> float:
    """Return when what came by `moment_s` at the full rate comes after a ramp."""
    if moment_s < ramp_s / 2:
        return math.sqrt(2 * ramp_s * moment_s)
    return moment_s + ramp_s / 2
