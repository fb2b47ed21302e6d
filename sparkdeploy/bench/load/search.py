"""The highest rate that holds the limits: which to try next, and what the tries say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.load.record import SustainedRate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.load.record import LoadResult

FIRST_PER_S = 1.0
LEAST_PER_S = 1 / 64
MOST_TRIES = 12
CLOSE = 1.1
"""A failing rate this close above a holding one ends the search."""


@dataclass(frozen=True, slots=True)
class Search:
    """Rates to be tried as given, then a bisection between the last that held and the next."""

    rates: tuple[float, ...]
    """Ascending; empty to look for them: doubled while they hold, halved while they do not."""
    wanted_share: float

    def next_rate(self, tries: Sequence[LoadResult]) -> float | None:
        """Return the next rate to try; None when enough is known."""
        tried = {item.rate_per_s for item in tries}
        left = [rate for rate in self.rates if rate not in tried]
        if left:
            return left[0]
        if not tries:
            return FIRST_PER_S
        if len(tries) >= MOST_TRIES + len(self.rates):
            return None
        holding, failing = self._bounds(tries)
        if failing is None or holding is None:
            return None if self.rates else self._wider(holding, failing)
        return (holding * failing) ** 0.5 if failing > holding * CLOSE else None

    def found(self, tries: Sequence[LoadResult]) -> SustainedRate:
        """Return the highest rate below the first that failed; None in it where none held."""
        holding, failing = self._bounds(tries)
        best = next((item for item in tries if item.rate_per_s == holding), None)
        return SustainedRate(
            rate_per_s=holding,
            held=best.held if best else 0,
            requests=best.requests if best else 0,
            wanted_share=self.wanted_share,
            fails_at_per_s=failing,
        )

    def _bounds(self, tries: Sequence[LoadResult]) -> tuple[float | None, float | None]:
        """A rate that holds above one that failed is luck: it is not believed."""
        failed = [item.rate_per_s for item in tries if item.held_share < self.wanted_share]
        failing = min(failed, default=None)
        held = [
            item.rate_per_s
            for item in tries
            if item.held_share >= self.wanted_share
            and (failing is None or item.rate_per_s < failing)
        ]
        return max(held, default=None), failing

    def _wider(self, holding: float | None, failing: float | None) -> float | None:
        if failing is None:
            return holding * 2 if holding is not None else None
        return failing / 2 if failing / 2 >= LEAST_PER_S else None
