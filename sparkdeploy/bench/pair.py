"""`bench pair`: two servers measured in turns, so that what drifts meanwhile meets both alike."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.compare import Side, compare, sides_of
from sparkdeploy.bench.endpoint import reach
from sparkdeploy.bench.run import kept_runs, measure_endpoint, require_figures
from sparkdeploy.errors import UsageError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkdeploy.bench.compare import RunComparison
    from sparkdeploy.bench.endpoint import Access, Endpoint
    from sparkdeploy.bench.record import Run
    from sparkdeploy.bench.run import WantedRun
    from sparkdeploy.settings import Settings

ONE_START = (
    "all runs of a side are of one start: what a start decides (clocks, memory, chosen kernels) "
    "may make such a difference, and no interval holds it"
)


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a pair; `ready` has it answer and returns where."""

    label: str
    ready: Callable[[], Endpoint]


@contextlib.contextmanager
def both_at_once(
    names: tuple[str, str], wanted: WantedRun, runs: int, settings: Settings, access: Access
) -> Iterator[RunComparison]:
    """Measure each side `runs` times, A B B A A B and so on; every run is kept under its label.

    Both must answer; what ends one run ends the pair, and the runs before it stay.
    """
    refuse_same(names)
    endpoints = tuple(reach(name, settings, access) for name in names)
    labels = _labels(names, endpoints)
    pair = [
        Contender(label, partial(_as_it_is, endpoint))
        for label, endpoint in zip(labels, endpoints, strict=True)
    ]
    turns = (side for number in range(runs) for side in (pair if number % 2 == 0 else pair[::-1]))
    yield take_turns(pair, turns, runs, wanted, settings)
    console.info(ONE_START)


def refuse_same(names: tuple[str, str]) -> None:
    if names[0] == names[1]:
        raise UsageError("a pair has two sides, and both are the same")


def take_turns(
    pair: Sequence[Contender],
    turns: Iterable[Contender],
    runs: int,
    wanted: WantedRun,
    settings: Settings,
) -> RunComparison:
    """Measure the sides in the order of `turns`, each `runs` times, and compare them."""
    measured: dict[str, list[Run]] = {side.label: [] for side in pair}
    counted = Counter[str]()
    for side in turns:
        counted[side.label] += 1
        console.info(f"run {counted[side.label]} of {runs}: {side.label}")
        finished = measure_endpoint(side.ready(), replace(wanted, save=side.label), settings)
        require_figures(finished)
        measured[side.label].append(finished.run)
    base, other = (Side(side.label, tuple(measured[side.label])) for side in pair)
    known = sides_of(item.run for item in kept_runs(settings) if item.is_whole)
    # The pair's own labels are told by the pair's own runs.
    return compare(base, other, [side for side in known if side.label not in measured])


def _as_it_is(endpoint: Endpoint) -> Endpoint:
    return endpoint


def _labels(names: Sequence[str], endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
    """By their recipes where these differ, else as the sides were named."""
    recipes = [endpoint.origin.recipe for endpoint in endpoints]
    told = tuple(recipe.name for recipe in recipes if recipe is not None)
    return told if len(set(told)) == len(names) else tuple(names)
