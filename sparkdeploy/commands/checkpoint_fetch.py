"""Bring what a recipe needs from the hub: said first, asked for, then fetched and verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import pull as pulling
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock, find_pinned, pin_found
from sparkdeploy.checkpoint.prebuilt import resolve_fp8
from sparkdeploy.checkpoint.ranges import HubRanges
from sparkdeploy.checkpoint.treatment import check_remote
from sparkdeploy.commands.drafting import Request, resolve
from sparkdeploy.console import console, format_bytes
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node import facts
from sparkdeploy.plan.observe import treatment_of
from sparkdeploy.plan.observed import MissingModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sparkdeploy.checkpoint.hub import Hub
    from sparkdeploy.checkpoint.pull import Download
    from sparkdeploy.checkpoint.treatment import Treatment
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.schema import Recipe
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Wanted:
    """A repository at a branch, tag or commit."""

    repo: str
    revision: str = "main"
    treatment: Treatment | None = None
    """For a finished hybrid: what it must hold, which is looked at before it is fetched."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A repository that is here, whole and verified."""

    repo: str
    revision: str
    commit: str
    path: Path
    size_bytes: int
    fetched_bytes: int


def wanted_by(name: str, settings: Settings) -> tuple[Wanted, ...]:
    """What `ORG/NAME[@REVISION]` or a recipe's name stands for: its model and its drafter."""
    if "/" in name and not name.startswith((".", "/", "~")) and not name.endswith(".yaml"):
        repo, _, revision = name.partition("@")
        return (Wanted(repo, revision or "main"),)
    return tuple(_repositories(resolve(Request(name), settings).recipe, settings))


def pull_repositories(
    wanted: Sequence[Wanted], settings: Settings, *, anew: bool
) -> tuple[Pulled, ...]:
    """Download and verify; `anew` asks the hub where each branch is now.

    Raises CheckpointError: no access, no room, no network, or files that stay wrong.
    """
    hub, lock = open_hub(settings), HubLock(settings.state_dir)
    downloads = [_planned(hub, lock, item, anew=anew) for item in wanted]
    for download in downloads:
        console.info(describe(download, hub))
    return tuple(_pull(hub, lock, download) for download in downloads)


def bring_models(plan: Plan, settings: Settings, consent: Callable[[str], bool]) -> bool:
    """Fetch the models a plan lacks, after asking; say whether the plan must be made anew.

    A model that is here already is pinned to the commit it has. Raises CheckpointError when
    nobody agrees, and as `pull_repositories` does.
    """
    _pin_what_is_here(plan, settings)
    observed = plan.observed
    missing = [m for m in (observed.model, observed.drafter) if isinstance(m, MissingModel)]
    resolved_anew = resolve_fp8(plan.resolved.recipe.checkpoint, settings)
    if not missing:
        return resolved_anew
    hub, lock = open_hub(settings), HubLock(settings.state_dir)
    asked_for = {(m.repo, m.revision) for m in missing}
    downloads = [
        _planned(hub, lock, wanted, anew=False)
        for wanted in _repositories(plan.resolved.recipe, settings)
        if (wanted.repo, wanted.revision) in asked_for
    ]
    for download in downloads:
        console.info(describe(download, hub))
    _ask(downloads, consent)
    for download in downloads:
        _pull(hub, lock, download)
    return True


def describe(download: Download, hub: Hub) -> str:
    """A download in one line: commit, bytes, disk and licence."""
    facts_ = download.facts
    to_come = "nothing to download"
    if download.missing_bytes:
        to_come = f"{format_bytes(download.missing_bytes)} to download"
    elif not download.is_verified:
        to_come = "all here, to be verified"
    return (
        f"{facts_.repo} at {facts_.commit[:12]}: {to_come} of {format_bytes(facts_.size_bytes)}, "
        f"{format_bytes(download.free_bytes)} free in {hub.cache}, "
        f"licence {facts_.license or 'not stated'}"
    )


def _repositories(recipe: Recipe, settings: Settings) -> Iterator[Wanted]:
    if recipe.model.path is None:
        is_hybrid = recipe.checkpoint.fp8_dense.is_finished
        treatment = treatment_of(recipe, settings) if is_hybrid else None
        yield Wanted(recipe.model.repo, recipe.model.revision, treatment)
    speculative = recipe.serve.speculative
    if speculative is not None and speculative.model is not None:
        yield Wanted(speculative.model)


def _planned(hub: Hub, lock: HubLock, wanted: Wanted, *, anew: bool) -> Download:
    found = pulling.resolve(hub, lock, wanted.repo, wanted.revision, anew=anew)
    free_bytes = facts.free_bytes(hub.cache) or 0
    download = pulling.plan_download(hub, lock, found, free_bytes=free_bytes)
    if wanted.treatment is not None and download.missing:
        check_remote(HubRanges(hub, found), wanted.treatment)
    return download


def _pull(hub: Hub, lock: HubLock, download: Download) -> Pulled:
    found = download.facts
    if not download.is_verified:
        with console.step(f"download of {found.repo}") as step:
            path = pulling.pull(hub, lock, download, step.progress)
    else:
        path = pulling.pull(hub, lock, download, lambda _done, _total: None)
    return Pulled(
        found.repo, found.revision, found.commit, path, found.size_bytes, download.missing_bytes
    )


def _pin_what_is_here(plan: Plan, settings: Settings) -> None:
    lock = HubLock(settings.state_dir)
    for wanted in _repositories(plan.resolved.recipe, settings):
        source = find_pinned(wanted.repo, wanted.revision, settings.hub_cache, lock)
        if source is not None:
            pin_found(source, wanted.revision, lock)


def _ask(downloads: Sequence[Download], consent: Callable[[str], bool]) -> None:
    names = " and ".join(download.facts.repo for download in downloads)
    size = format_bytes(sum(download.missing_bytes for download in downloads))
    if not consent(f"Download {names} ({size})?"):
        raise CheckpointError(
            f"{names} is not on this machine ({size} to download)",
            hint="say yes, or pass --yes; or `sparkdeploy checkpoint pull "
            f"{downloads[0].facts.repo}` first",
        )
