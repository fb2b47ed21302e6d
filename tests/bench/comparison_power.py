"""How often `bench compare` calls like servers different, and what difference it can see.

`python -m tests.bench.comparison_power` prints two Markdown tables. Runs' logarithms are drawn
normally with the variation between runs of the same; rounds within a run are in it already.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

from sparkdeploy.bench.variation import DifferenceVerdict, ratio_of, spread_of

if TYPE_CHECKING:
    from collections.abc import Callable

SIMULATED = 20_000
SEARCHED = 4_000
RUNS = (2, 3, 4, 5, 8)
DEVIATIONS = (0.005, 0.01, 0.02)
POWER = 0.8


def claimed(runs: int, deviation: float, difference: float, simulated: int = SIMULATED) -> float:
    """Return the share of comparisons that claim a difference."""
    dice = random.Random(f"{runs} {deviation} {difference}")
    found = 0
    for _ in range(simulated):
        base = [dice.gauss(0.0, deviation) for _ in range(runs)]
        other = [dice.gauss(difference, deviation) for _ in range(runs)]
        verdict = ratio_of(base, other, spread_of([base, other])).verdict
        found += verdict in {DifferenceVerdict.HIGHER, DifferenceVerdict.LOWER}
    return found / simulated


def falsely_claimed(runs: int, deviation: float) -> float:
    return claimed(runs, deviation, 0.0)


def seen(runs: int, deviation: float) -> float:
    """Return the least difference that is claimed in four of five comparisons."""
    low, high = 0.0, 20 * deviation
    for _ in range(12):
        middle = (low + high) / 2
        if claimed(runs, deviation, middle, SEARCHED) < POWER:
            low = middle
        else:
            high = middle
    return high


def main() -> None:
    table("like servers called different", falsely_claimed)
    table(f"difference seen in {POWER:.0%} of comparisons", seen)


def table(title: str, figure: Callable[[int, float], float]) -> None:
    head = " | ".join(f"{deviation:.1%} between runs" for deviation in DEVIATIONS)
    say(f"\n| runs a side: {title} | {head} |")
    say("|---|" + "---|" * len(DEVIATIONS))
    for runs in RUNS:
        say(f"| {runs} | " + " | ".join(f"{figure(runs, d):.1%}" for d in DEVIATIONS) + " |")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
