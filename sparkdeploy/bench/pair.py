"""`bench pair`: two servers measured in turns, so that what drifts meanwhile meets both alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.bench.compare import Side, compare, sides_of
from sparkdeploy.bench.endpoint import reach
from sparkdeploy.bench.run import kept_runs, measure_endpoint, require_figures
from sparkdeploy.errors import UsageError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.compare import RunComparison
    from sparkdeploy.bench.endpoint import Access, Endpoint
    from sparkdeploy.bench.record import Run
    from sparkdeploy.bench.run import WantedRun
    from sparkdeploy.settings import Settings

ONE_START = (
    "all runs of a side are of one start: what a start decides (clocks, memory, chosen kernels) "
    "may make such a difference, and no interval holds it"
)


def measure_in_turns(
    names: tuple[str, str], wanted: WantedRun, runs: int, settings: Settings, access: Access
) -> RunComparison:
    """Measure each side `runs` times, A B B A A B and so on; every run is kept under its label.

    Both must answer; what ends one run ends the pair, and the runs before it stay.
    """
    if names[0] == names[1]:
        raise UsageError("a pair has two sides, and both are the same")
    endpoints = tuple(reach(name, settings, access) for name in names)
    pair = list(zip(_labels(names, endpoints), endpoints, strict=True))
    measured: dict[str, list[Run]] = {label: [] for label, _ in pair}
    for number in range(runs):
        for label, endpoint in pair if number % 2 == 0 else pair[::-1]:
            console.info(f"run {number + 1} of {runs}: {label}")
            finished = measure_endpoint(endpoint, replace(wanted, save=label), settings)
            require_figures(finished)
            measured[label].append(finished.run)
    base, other = (Side(label, tuple(found)) for label, found in measured.items())
    known = sides_of(item.run for item in kept_runs(settings) if item.is_whole)
    # The pair's own labels stand for the pair's own runs.
    return compare(base, other, [side for side in known if side.label not in measured])


def _labels(names: Sequence[str], endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
    """By their recipes where these differ, else as the sides were named."""
    recipes = [endpoint.origin.recipe for endpoint in endpoints]
    labels = tuple(recipe.name for recipe in recipes if recipe is not None)
    return labels if len(set(labels)) == len(names) else tuple(names)
