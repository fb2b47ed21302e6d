"""Facts of a model that is not here, from a hub: by its headers, or by what came in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.published import ask_hub, ask_in_time, remote_tensors
from sparkdeploy.checkpoint.ranges import read_config
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.model import facts_from

if TYPE_CHECKING:
    from sparkdeploy.checkpoint.published import Remote
    from sparkdeploy.checkpoint.ranges import RangeSource
    from sparkdeploy.estimate.model import ModelFacts
    from sparkdeploy.recipe.schema import Weights
    from sparkdeploy.settings import Settings

HEADERS = "safetensors headers on the hub (tensors were not downloaded)"
SIZES = "file sizes on the hub (no header was read in time: `--headers` waits for them)"


def hub_facts(model: Weights, settings: Settings) -> ModelFacts:
    """Read config.json and every header from the hub, at the pinned commit if there is one.

    Nothing is kept. Raises CheckpointError when the hub refuses or a header is damaged.
    """
    remote = ask_hub(model.source, model.revision, settings)
    return _facts(model.source, remote)


def facts_in_time(model: Weights, settings: Settings) -> ModelFacts:
    """Return what the hub says within seconds; raise CheckpointError when that is nothing."""
    remote = ask_in_time(model.source, model.revision, settings, headers=True)
    if remote.listing is None or remote.config is None:
        raise CheckpointError(
            f"nothing is known of {model.source}: it is not here, has no shipped facts, and "
            f"{remote.failure}",
            hint="try again where the hub answers, or name a folder with --set model.path=...",
        )
    return _facts(model.source, remote)


def facts_in(repo: str, source: RangeSource) -> ModelFacts:
    """Return the facts that files of `source` state; tensor data is never read.

    Raises CheckpointError for files that state none.
    """
    return facts_from(repo, read_config(source), remote_tensors(source).values(), HEADERS)


def _facts(repo: str, remote: Remote) -> ModelFacts:
    config = remote.config or {}
    if remote.tensors is not None:
        return facts_from(repo, config, remote.tensors, HEADERS)
    size_bytes = remote.listing.weights_bytes if remote.listing is not None else 0
    return facts_from(repo, config, (), SIZES, untyped_bytes=size_bytes)
