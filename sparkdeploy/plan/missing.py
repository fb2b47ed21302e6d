"""A model that is not here: what its pin, shipped facts or the hub say of its size and layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint import source as sources
from sparkdeploy.checkpoint.conversion import unfit
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.published import ask_in_time, shipped_entry
from sparkdeploy.checkpoint.pull import download_bytes
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.limits import needs_of
from sparkdeploy.estimate.model import known_layers
from sparkdeploy.plan.observed import MissingModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checkpoint.conversion import Conversion
    from sparkdeploy.checkpoint.layers import Architecture
    from sparkdeploy.settings import Settings


def missing_model(
    repo: str, revision: str, settings: Settings, conversion: Conversion | None = None
) -> MissingModel:
    """Ask the pin, then shipped facts, then the hub, which has some seconds."""
    pin, shipped = HubLock(settings.state_dir).pin(repo, revision), shipped_entry(repo)
    config, unknown, here_bytes = shipped["config"] if shipped else None, "", 0
    size_bytes: int | None = shipped["size_bytes"] if shipped else None
    weights_bytes = size_bytes
    if pin is not None and pin.files:
        found = pin.facts(repo, revision)
        size_bytes, weights_bytes = found.size_bytes, found.weights_bytes
        here_bytes = found.size_bytes - download_bytes(settings.hub_cache, found)
    elif not shipped:
        answer = ask_in_time(repo, revision, settings)
        config, unknown = answer.config, answer.failure
        if answer.listing is not None:
            size_bytes, weights_bytes = answer.listing.size_bytes, answer.listing.weights_bytes
    missing = MissingModel(
        repo,
        sources.fetch_command(repo, revision),
        size_bytes,
        revision,
        here_bytes,
        weights_bytes,
        unknown=unknown,
    )
    if config is None:
        return missing
    layers, unknown = layers_of(config)
    unfit = unfit_for(config, conversion) if conversion is not None else ()
    needs = needs_of(config)
    return replace(missing, layers=layers, unknown=unknown, demands=needs, unfit=unfit)


def unfit_for(config: Mapping[str, Any], conversion: Conversion) -> tuple[str, ...]:
    """Return why a conversion does not apply; what is wrong with numbers the download says."""
    try:
        return tuple(unfit(config, conversion))
    except CheckpointError as error:
        return () if conversion.is_none else (error.message,)


def layers_of(config: Mapping[str, Any]) -> tuple[Architecture | None, str]:
    """Return the layers, or None and what is not known.

    Numbers that no model has are for the download to refuse.
    """
    try:
        return known_layers(config)
    except CheckpointError as error:
        return None, error.message
