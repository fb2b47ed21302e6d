"""Facts of a model that is not here, from its headers on the hub: some megabytes of ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.contents import INDEX_FILE
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.ranges import HubRanges, index_of, read_config, read_remote_headers
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.model_facts import ModelFacts, facts_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checkpoint.ranges import RangeSource
    from sparkdeploy.checkpoint.safetensors import TensorInfo
    from sparkdeploy.recipe.schema import Model
    from sparkdeploy.settings import Settings


def hub_facts(model: Model, settings: Settings) -> ModelFacts:
    """Read config.json and every header from the hub, at the pinned commit if there is one.

    Nothing is kept. Raises CheckpointError when the hub refuses or a header is damaged.
    """
    hub = open_hub(settings)
    pin = HubLock(settings.state_dir).pin(model.known_as, model.revision)
    described = hub.describe(model.known_as, pin.commit if pin is not None else model.revision)
    return facts_in(model.known_as, HubRanges(hub, described))


def facts_in(repo: str, source: RangeSource) -> ModelFacts:
    """Return the facts that files of `source` state; tensor data is never read.

    Raises CheckpointError for files that state none.
    """
    return facts_from(
        repo,
        read_config(source),
        _tensors(source).values(),
        "safetensors headers on the hub (tensors were not downloaded)",
    )


def _tensors(source: RangeSource) -> Mapping[str, TensorInfo]:
    """Every tensor once: where two files hold one, the index says which counts."""
    files = [name for name in source.files() if name.endswith(".safetensors") and "/" not in name]
    if not files:
        raise CheckpointError(f"{source.name} holds no .safetensors files.")
    indexed: Mapping[str, str] = index_of(source) if INDEX_FILE in source.files() else {}
    found: dict[str, TensorInfo] = {}
    for file, header in read_remote_headers(source, sorted(files)):
        for name, tensor in header.tensors.items():
            if name not in found or indexed.get(name) == file:
                found[name] = tensor
    return found
