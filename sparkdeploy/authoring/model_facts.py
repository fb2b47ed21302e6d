"""What is known of a model before a download: its files here, shipped facts, or the hub."""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from sparkdeploy.checkpoint import source as sources
from sparkdeploy.checkpoint.contents import (
    describe,
    read_headers,
    read_tensors,
    repeated_tensors,
)
from sparkdeploy.checkpoint.hub_lock import find_source
from sparkdeploy.checkpoint.repo_files import has_weights, weights_bytes
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate import model
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.recipe.weights import Drafter
from sparkdeploy.settings import Settings

HEADERS_HERE = "safetensors headers on this machine"
SIZES_HERE = "file sizes on this machine (they have no headers)"
HEADERS = "safetensors headers on the hub (tensors were not downloaded)"
SIZES = "file sizes on the hub (no header was read in time: `--headers` waits for them)"


class WhenMissing(Enum):
    """Where the facts of a model come from that is not on this machine."""

    SHIPPED = "shipped, else what the hub says within seconds"
    HUB = "the headers on the hub"
    NOBODY = "shipped, or none"


def facts_of(
    weights: Weights,
    settings: Settings,
    shipped: Mapping[str, model.ModelFacts],
    when_missing: WhenMissing,
) -> model.ModelFacts:
    """Return what the model's own files say; when it is not here, what is asked for instead."""
    name = weights.source
    source = find_source(weights, settings)
    folder = weights.subfolder if isinstance(weights, Drafter) else None
    if folder is not None:
        # What is known of the repository says nothing of a folder in it.
        source, name = source and sources.within(source, folder), f"{name}/{folder}"
    if source is not None:
        sizes = {str(it): (source.files_dir / it).stat().st_size for it in source.files()}
        if has_weights(sizes) and not any(it.endswith(".safetensors") for it in sizes):
            found, known = describe(source.files_dir, sizes), weights_bytes(sizes)
            return model.facts_from(name, found, (), SIZES_HERE, untyped_bytes=known)
        headers = read_headers(source.files_dir)
        tensors = read_tensors(source.files_dir, headers).values()
        found = describe(source.files_dir, tuple(sizes))
        found = replace(found, repeated=repeated_tensors(headers, found.indexed))
        return model.facts_from(name, found, (item.info for item in tensors), HEADERS_HERE)
    if folder is not None:
        raise CheckpointError(f"{name} is not here")
    if when_missing is WhenMissing.HUB:
        return _hub_facts(weights, settings, in_time=False)
    if name in shipped:
        return shipped[name]
    if when_missing is WhenMissing.SHIPPED:
        return _hub_facts(weights, settings, in_time=True)
    fetch = sources.fetch_command(name, weights.revision)
    raise CheckpointError(
        f"nothing is known of {name}: it is not here and has no shipped facts",
        hint=f"read its headers with --headers, or {fetch}",
    )


def _hub_facts(weights: Weights, settings: Settings, *, in_time: bool) -> model.ModelFacts:
    """Return what a hub says of a model at its pin; `in_time` waits for seconds."""
    # It imports requests, which no other estimate needs.
    from sparkdeploy.checkpoint.published import ask_hub, ask_in_time  # noqa: PLC0415

    name, revision = weights.source, weights.revision
    if in_time:
        remote = ask_in_time(name, revision, settings, headers=True)
    else:
        remote = ask_hub(name, revision, settings)
    if in_time and (remote.listing is None or remote.config is None):
        raise CheckpointError(
            f"nothing is known of {name}: it is not here, has no shipped facts, and "
            f"{remote.failure}",
            hint="try again where the hub answers, or name a folder with --set model.path=...",
        )
    listing, found = remote.listing, remote.described
    if remote.tensors is not None:
        return model.facts_from(name, found, remote.tensors, HEADERS)
    size_bytes = listing.weights_bytes if listing is not None else 0
    return model.facts_from(name, found, (), SIZES, untyped_bytes=size_bytes)


def drafter_of(
    resolved: Resolved,
    settings: Settings,
    shipped: Mapping[str, model.ModelFacts],
    when_missing: WhenMissing,
) -> model.ModelFacts | None:
    """Return what is known of a drafter that is a model of its own; None when that is nothing."""
    speculative = resolved.recipe.serve.speculative
    drafter = speculative.drafter if speculative is not None else None
    if drafter is None:
        return None
    try:
        return facts_of(drafter, settings, shipped, when_missing)
    except CheckpointError:
        return None  # a plan says why
