"""What of a stack fits into memory together, and what has to go for another model: pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations, islice

from sparkdeploy.gateway.stack import Keep

MOST_TRIED = 4096
"""Of sets of models that may go, the smallest first: every one of a dozen models'."""
MOST_SETS = 20_000


@dataclass(frozen=True, slots=True)
class ModelFit:
    """What one model takes, and what its start costs."""

    name: str
    keep: Keep
    takes: Mapping[str, int]
    """Bytes by pool."""
    floors: Mapping[str, int] = field(default_factory=dict)
    """By pool: what has to stay free beside everything that runs there."""
    start_s: float | None = None
    is_measured: bool = False
    """Whether a start of it was measured here; otherwise it is estimated by its bytes."""
    download_bytes: int | None = 0
    """None where nobody knows its size."""


@dataclass(frozen=True, slots=True)
class StackFit:
    """The models of a stack, and how much there is of what they share."""

    usable: Mapping[str, int]
    """By pool (a node's memory, a GPU's): what models and the largest floor may take of it."""
    models: tuple[ModelFit, ...]

    def __getitem__(self, name: str) -> ModelFit:
        return {it.name: it for it in self.models}[name]

    def is_together(self, names: Iterable[str]) -> bool:
        """Say whether models may run at the same time; names that are none of the stack's count
        nothing here, for what others take is not usable."""
        found = self._of(set(names))
        return self._is_enough(found, {pool for model in found for pool in model.takes})

    def fits(self, running: Set[str], wanted: str) -> bool:
        """Say whether a model may start beside those that run, as far as it takes the same."""
        return self._is_enough(self._of({*running, wanted}), self[wanted].takes)

    def _of(self, names: Set[str]) -> list[ModelFit]:
        return [it for it in self.models if it.name in names]

    def _is_enough(self, models: Iterable[ModelFit], pools: Iterable[str]) -> bool:
        there = {pool: [it for it in models if it.takes.get(pool)] for pool in pools}
        return all(
            sum(it.takes[pool] for it in found) + max(it.floors.get(pool, 0) for it in found)
            <= self.usable.get(pool, 0)
            for pool, found in there.items()
            if found
        )

    def cheapest_eviction(
        self, running: Set[str], wanted: str, cost_s: Mapping[str, float] | None = None
    ) -> tuple[str, ...] | None:
        """Return which running models go for another one; None where it never fits.

        What runs on request goes before what is kept idle; then counts what a start costs, by
        `cost_s` or the starts known here. Of more than a dozen that run it may not be the cheapest.
        """
        evicted = [it for it in self.models if it.name in running and it.name != wanted]
        evicted = [it for it in evicted if it.keep != "always"]

        def price(models: Iterable[ModelFit]) -> tuple[float, float, int]:
            return _price(tuple(models), cost_s or {})

        def left_by(models: Iterable[ModelFit]) -> set[str]:
            return set(running) - {it.name for it in models}

        if not self.fits(left_by(evicted), wanted):
            return None
        evicted.sort(key=lambda it: (price((it,)), it.name))
        sets = (it for count in range(len(evicted) + 1) for it in combinations(evicted, count))
        enough = (it for it in islice(sets, MOST_TRIED) if self.fits(left_by(it), wanted))
        return tuple(it.name for it in min(enough, key=price, default=evicted))

    def largest_sets(self, limit: int) -> Iterator[tuple[str, ...]]:
        """Yield the sets that fit together and to which no model can be added, at most `limit`."""
        names = [it.name for it in self.models if self.is_together((it.name,))]
        yielded = 0
        for chosen in islice(self._growing(names, ()), MOST_SETS):
            others = (it for it in names if it not in chosen)
            if not any(self.is_together((*chosen, it)) for it in others):
                yield chosen
                yielded += 1
                if yielded == limit:
                    return

    def _growing(self, names: Sequence[str], chosen: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield every set that fits, each as far as the rest of the names lets it grow."""
        if not names:
            yield chosen
            return
        first, *rest = names
        if self.is_together((*chosen, first)):
            yield from self._growing(rest, (*chosen, first))
            if self.is_together((*chosen, first, *rest)):
                return  # a set without the first one could only grow by it
        yield from self._growing(rest, chosen)

    def excluded(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs that exclude each other, of models that fit alone."""
        alone = [it.name for it in self.models if self.is_together((it.name,))]
        yield from (pair for pair in combinations(alone, 2) if not self.is_together(pair))


def _price(models: Sequence[ModelFit], cost_s: Mapping[str, float]) -> tuple[float, float, int]:
    def total(keep: Keep) -> float:
        costs = (cost_s.get(it.name, it.start_s or 0.0) for it in models if it.keep == keep)
        return sum(0.0 if math.isnan(cost) else max(cost, 0.0) for cost in costs)

    return total("idle"), total("request"), len(models)
