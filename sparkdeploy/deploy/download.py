"""Bring what a recipe needs from the hub: said first, asked for, then fetched and verified."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock, find_pinned, pin_found
from sparkdeploy.checkpoint.prebuilt import resolve_fp8
from sparkdeploy.checkpoint.pull import WantedRepository, announce, awaited_downloads, fetch
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import CheckpointError
from sparkdeploy.plan.observe import conversion_of
from sparkdeploy.plan.observed import MissingModel
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.schema import Recipe
    from sparkdeploy.settings import Settings


OTHER_FORMATS = frozenset({"gguf", "mistral", "npcache", "pt", "sharded_state"})
"""Values of `load_format` for other files than vLLM reads without one."""


def repositories_of(
    name: str, settings: Settings, assignments: Sequence[str] = ()
) -> list[WantedRepository]:
    """A recipe's model, drafter and adapters, as far as they are of a hub."""
    return list(
        _repositories(resolve(Request(name, tuple(assignments)), settings).recipe, settings)
    )


def bring_models(plan: Plan, settings: Settings, consent: Callable[[str], bool]) -> bool:
    """Fetch the models a plan lacks, after asking; say whether the plan must be made anew.

    A model that is here already is pinned to the commit it has. Raises CheckpointError when
    nobody agrees, and as `pull_repositories` does.
    """
    recipe, observed = plan.resolved.recipe, plan.observed
    lock = HubLock(settings.state_dir)
    wanted = list(_repositories(recipe, settings))
    for item in wanted:
        if source := find_pinned(item.repo, item.revision, settings.hub_cache, lock):
            pin_found(source, item.revision, lock)
    resolved_anew = resolve_fp8(recipe.checkpoint, settings)
    absent = {
        (model.repo, model.revision)
        for model in (observed.model, *observed.companions)
        if isinstance(model, MissingModel)
    }
    if not absent:
        return resolved_anew
    hub = open_hub(settings)
    downloads = [
        announce(hub, lock, item, anew=False)
        for item in wanted
        if (item.repo, item.revision) in absent
    ]
    names = " and ".join(download.facts.repo for download in downloads)
    size = format_bytes(sum(download.missing_bytes for download in downloads))
    if not consent(f"Download {names} ({size})?"):
        raise CheckpointError(
            f"{names} is not on this machine ({size} to download)",
            hint="say yes, or pass --yes; or `sparkdeploy checkpoint pull "
            f"{shlex.quote(downloads[0].facts.repo)}` first",
        )
    console.expect(*awaited_downloads(downloads))
    for download in downloads:
        fetch(hub, lock, download)
    return True


def _repositories(recipe: Recipe, settings: Settings) -> Iterator[WantedRepository]:
    if recipe.model.path is None:
        is_hybrid = recipe.checkpoint.fp8_dense.is_finished
        conversion = conversion_of(recipe, settings) if is_hybrid else None
        yield WantedRepository(
            recipe.model.source,
            recipe.model.revision,
            all_files=recipe.serve.load_format in OTHER_FORMATS,
            conversion=conversion,
        )
    for weights in recipe.companions:
        if weights.path is None:
            yield WantedRepository(weights.source, weights.revision)
