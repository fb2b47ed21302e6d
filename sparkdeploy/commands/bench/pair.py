"""`bench pair`: two servers measured in turns, so that what drifts meanwhile meets both alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.bench.compare import Side, compare, sides_of
from sparkdeploy.commands.bench.endpoint import reach
from sparkdeploy.commands.bench.run import kept_runs, measure_endpoint, require_figures
from sparkdeploy.console import console
from sparkdeploy.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.compare import RunComparison
    from sparkdeploy.bench.record import Run
    from sparkdeploy.commands.bench.endpoint import Access, Endpoint
    from sparkdeploy.commands.bench.run import WantedRun
    from sparkdeploy.settings import Settings


def measure_pair(
    names: tuple[str, str], wanted: WantedRun, runs: int, settings: Settings, access: Access
) -> RunComparison:
    """Measure each side `runs` times, A B B A A B and so on; every run is kept under its label.

    Both must answer; what ends one run ends the pair, and the runs before it stay.
    """
    if names[0] == names[1]:
        raise UsageError("a pair has two sides, and both are the same")
    endpoints = tuple(reach(name, settings, access) for name in names)
    labels = _labels(names, endpoints)
    measured: dict[str, list[Run]] = {label: [] for label in labels}
    for number in range(runs):
        pairs = list(zip(labels, endpoints, strict=True))
        for label, endpoint in pairs if number % 2 == 0 else reversed(pairs):
            console.info(f"run {number + 1} of {runs}: {label}")
            finished = measure_endpoint(endpoint, replace(wanted, save=label), settings)
            require_figures(finished)
            measured[label].append(finished.run)
    base, other = (Side(label, tuple(measured[label])) for label in labels)
    known = sides_of(item.run for item in kept_runs(settings) if item.is_whole)
    # The pair's own labels are told by the pair's own runs.
    return compare(base, other, [side for side in known if side.label not in labels])


def _labels(names: Sequence[str], endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
    """By their recipes where these differ, else as the sides were named."""
    recipes = [endpoint.origin.recipe for endpoint in endpoints]
    told = tuple(recipe.name for recipe in recipes if recipe is not None)
    return told if len(set(told)) == len(names) else tuple(names)
