"""Models that are not here yet, as they will stand when this user has downloaded them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.cache import SNAPSHOTS, repo_folder
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.node.facts import current_gid
from sparkdeploy.plan.observe import overlay_path, treatment_of
from sparkdeploy.plan.observed import MissingModel, ModelFact, OverlayFact

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.recipe.schema import Recipe
    from sparkdeploy.settings import Settings

FINGERPRINT = "<fingerprint>"
"""An overlay's name ends in the hash of files that nobody has seen yet."""


def with_expected_models(observed: Observed, recipe: Recipe, settings: Settings) -> Observed:
    """Return what was seen as if nothing were to be downloaded.

    What cannot be known before stands in angle brackets: the commit of a branch that nobody
    resolved, and the name of an overlay.
    """
    model = observed.model
    if isinstance(model, MissingModel):
        is_treated = not treatment_of(recipe, settings).is_none
        overlay = overlay_path(model.repo, FINGERPRINT, settings) if is_treated else None
        model = _expected(model, overlay, observed.caller_uid, settings)
    companions = tuple(
        _expected(item, None, observed.caller_uid, settings)
        if isinstance(item, MissingModel)
        else item
        for item in observed.companions
    )
    return replace(observed, model=model, companions=companions)


def _expected(
    missing: MissingModel, overlay: Path | None, uid: int, settings: Settings
) -> ModelFact:
    root = repo_folder(settings.hub_cache, missing.repo)
    pin = HubLock(settings.state_dir).pin(missing.repo, missing.revision)
    commit = pin.commit if pin is not None else f"<commit of {missing.revision}>"
    return ModelFact(
        name=root.name,
        root=root,
        files=f"{SNAPSHOTS}/{commit}",
        revision=commit,
        size_bytes=missing.size_bytes or 0,
        owner_uid=uid,
        owner_gid=current_gid(),
        overlay=OverlayFact(overlay, is_complete=False) if overlay is not None else None,
    )
