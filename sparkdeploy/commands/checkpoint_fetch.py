"""Bring what a recipe needs from the hub: said first, asked for, then fetched and verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock, find_pinned, pin_found
from sparkdeploy.checkpoint.prebuilt import resolve_fp8
from sparkdeploy.checkpoint.pull import Pulled, WantedRepository, announce, fetch
from sparkdeploy.checkpoint.repo_files import repo_and_revision
from sparkdeploy.commands.request import Request, resolve
from sparkdeploy.console import format_bytes
from sparkdeploy.errors import CheckpointError
from sparkdeploy.plan.observe import treatment_of
from sparkdeploy.plan.observed import MissingModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.schema import Recipe
    from sparkdeploy.settings import Settings


def pull_repositories(name: str, settings: Settings, *, anew: bool) -> tuple[Pulled, ...]:
    """Download and verify `ORG/NAME[@REVISION]`, or a recipe's model and drafter.

    `anew` asks the hub where each branch is now. Raises CheckpointError: no access, no room, no
    network, or files that stay wrong.
    """
    if "/" in name and not name.startswith((".", "/", "~")) and not name.endswith(".yaml"):
        wanted = [WantedRepository(*repo_and_revision(name))]
    else:
        wanted = list(_repositories(resolve(Request(name), settings).recipe, settings))
    hub, lock = open_hub(settings), HubLock(settings.state_dir)
    downloads = [announce(hub, lock, item, anew=anew) for item in wanted]
    return tuple(fetch(hub, lock, download) for download in downloads)


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
        for model in (observed.model, observed.drafter)
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
            f"{downloads[0].facts.repo}` first",
        )
    for download in downloads:
        fetch(hub, lock, download)
    return True


def _repositories(recipe: Recipe, settings: Settings) -> Iterator[WantedRepository]:
    if recipe.model.path is None:
        is_hybrid = recipe.checkpoint.fp8_dense.is_finished
        treatment = treatment_of(recipe, settings) if is_hybrid else None
        yield WantedRepository(recipe.model.repo, recipe.model.revision, treatment)
    speculative = recipe.serve.speculative
    if speculative is not None and speculative.model is not None:
        yield WantedRepository(speculative.model)
