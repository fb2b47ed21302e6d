"""A model that is not here: what its pin, shipped facts or the hub say of its size and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint import source as sources
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.published import shipped_entry
from sparkdeploy.checkpoint.pull import download_bytes
from sparkdeploy.checkpoint.remote import ask_sizes
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.model_facts import known_layers
from sparkdeploy.plan.observed import MissingModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checkpoint.family.layers import Architecture
    from sparkdeploy.settings import Settings


def missing_model(repo: str, revision: str, settings: Settings) -> MissingModel:
    """Ask the pin, then shipped facts, then the hub, which has some seconds."""
    command = sources.fetch_command(repo, revision)
    pin = HubLock(settings.state_dir).pin(repo, revision)
    shipped = shipped_entry(repo)
    if pin is not None and pin.files:
        found = pin.facts(repo, revision)
        here_bytes = found.size_bytes - download_bytes(settings.hub_cache, found)
        layers, unknown = layers_of(shipped["config"]) if shipped else (None, "")
        return MissingModel(
            repo,
            command,
            found.size_bytes,
            revision,
            here_bytes,
            weights_bytes=found.weights_bytes,
            layers=layers,
            unknown=unknown,
        )
    if shipped:
        layers, unknown = layers_of(shipped["config"])
        size_bytes = shipped["size_bytes"]
        return MissingModel(
            repo, command, size_bytes, revision, 0, size_bytes, layers=layers, unknown=unknown
        )
    told = ask_sizes(repo, revision, settings)
    layers, unknown = layers_of(told.config) if told.config is not None else (None, told.failure)
    listing = told.listing
    return MissingModel(
        repo,
        command,
        listing.size_bytes if listing is not None else None,
        revision,
        0,
        listing.weights_bytes if listing is not None else None,
        layers=layers,
        unknown=unknown,
    )


def layers_of(config: Mapping[str, Any]) -> tuple[Architecture | None, str]:
    """Return the layers, or None and what is not known.

    Numbers that no model has are for the download to refuse.
    """
    try:
        return known_layers(config)
    except CheckpointError as error:
        return None, error.message
