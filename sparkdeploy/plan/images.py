"""The image stages of a resolved recipe, and which of them are to be built."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.image.mods import ModFiles, read_mod
from sparkdeploy.image.network import registry_reference
from sparkdeploy.image.stages import (
    BASE_SOURCES,
    UPPERMOST_FIRST,
    BaseSource,
    Stage,
    Top,
    stages_of,
)
from sparkdeploy.plan.steps import Action, ImageStep
from sparkdeploy.recipe.image_name import is_tag
from sparkdeploy.settings import Settings, resources

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from sparkdeploy.image.lock import Architecture
    from sparkdeploy.node.container import ImageFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.load import Resolved


NOT_NEEDED = "not needed: a later stage is here"


def stages_for(
    resolved: Resolved, *, base_source: BaseSource, architecture: Architecture
) -> tuple[Stage, ...]:
    """Return the stages, lowest first; a mod whose folder is not here has none."""
    first, *above = stages_of(
        resolved.engine,
        base_source=base_source,
        architecture=architecture,
        resources=resources(),
        mods=mods_of(resolved),
        top=top_of(resolved),
    )
    if is_tag(resolved.image) and not first.unpinned:
        first = replace(first, pinned_tag=resolved.image or "")
    return (first, *above)


def choose_base_source(
    engine: Engine,
    architecture: Architecture,
    tags: Container[str],
    settings: Settings,
    asked: DockerHost | None,
) -> BaseSource:
    """Keep to the base of the images with these tags; otherwise the registry's, if it answers."""
    if engine.base is None or engine.base.debian is None:
        return "registry"
    made = [
        stage
        for source in BASE_SOURCES
        for stage in stages_of(
            engine, base_source=source, architecture=architecture, resources=resources()
        )
        if stage.tag in tags
    ]
    uppermost = min(made, key=lambda stage: UPPERMOST_FIRST[stage.name], default=None)
    if uppermost is not None:
        return uppermost.base_source
    reference = registry_reference(engine.base.image, settings.hosts.container_registry)
    return "registry" if asked is None or asked.registry_digest(reference) else "debian"


def mods_of(resolved: Resolved) -> list[ModFiles]:
    return [read_mod(mod) for mod in resolved.mods if not mod.is_missing]


def top_of(resolved: Resolved) -> Top:
    """Leave the vLLM of an image that others made as it is, unless the recipe needs more of it."""
    is_theirs = resolved.engine.kind == "image"
    return "guard" if is_theirs and not resolved.recipe.needs_plugin else "plugin"


def image_steps(stages: Sequence[Stage], images: Mapping[str, ImageFact]) -> tuple[ImageStep, ...]:
    """Return a step for each stage, lowest first; `images` are ours on the node, by tag."""
    # Nothing below a stage that is here is built: a worker that was sent the engine has no base.
    if unresolved_tag(stages):
        first, *above = stages
        asked = "a tag, resolved by `up`: it asks the registry, pulls that digest and keeps to it"
        reason = "once it is known what it stands on"
        later = (ImageStep(stage, Action.BUILD, reason) for stage in above)
        return (ImageStep(first, Action.FETCH, asked), *later)
    here = [is_built(stage, images) for stage in stages]
    return tuple(
        ImageStep(stage, Action.REUSE, "inputs unchanged" if is_here else NOT_NEEDED)
        if any(here[index:])
        else ImageStep(stage, Action.BUILD, _why_built(stage, images))
        for index, (stage, is_here) in enumerate(zip(stages, here, strict=True))
    )


def unresolved_tag(stages: Sequence[Stage]) -> str | None:
    """Return the tag on which everything stands, as long as nobody knows what it is."""
    return next((stage.unpinned for stage in stages if stage.unpinned), None)


def is_built(stage: Stage, images: Mapping[str, ImageFact]) -> bool:
    image = images.get(stage.tag)
    return image is not None and image.fingerprint == stage.fingerprint


def _why_built(stage: Stage, images: Mapping[str, ImageFact]) -> str:
    older = [
        image
        for image in images.values()
        if image.stage == stage.name and image.engine == stage.engine
    ]
    if not older:
        return "image is missing"
    changed = [
        name
        for name, digest in sorted(stage.inputs.items())
        if older[0].labels.get(f"{labels.PREFIX}input.{name}", digest) != digest
    ]
    return f"inputs changed: {', '.join(changed) or 'the stage below'}"
