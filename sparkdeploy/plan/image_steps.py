"""Which image stages are here, which are built, and which nobody needs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.image.stages import UPPERMOST_FIRST, stages_of
from sparkdeploy.plan.steps import Action, ImageStep

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.image.lock import Architecture
    from sparkdeploy.image.stages import BaseSource, Stage
    from sparkdeploy.node.container import ImageFact
    from sparkdeploy.recipe.schema import Engine

NOT_NEEDED = "not needed: a later stage is here"


def image_steps(stages: Sequence[Stage], images: Mapping[str, ImageFact]) -> tuple[ImageStep, ...]:
    """Return a step for each stage, lowest first; `images` are ours on the node, by tag.

    Nothing below a stage that is here is built: a worker that was sent the engine has no base.
    """
    here = [_is_here(stage, images) for stage in stages]
    return tuple(
        ImageStep(stage, Action.REUSE, "inputs unchanged" if is_here else NOT_NEEDED)
        if any(here[index:])
        else ImageStep(stage, Action.BUILD, _why_built(stage, images))
        for index, (stage, is_here) in enumerate(zip(stages, here, strict=True))
    )


def source_already_here(
    engine: Engine, architecture: Architecture, resources: Path, tags: Container[str]
) -> BaseSource | None:
    """Return the base source that the images with these tags were made with; None without any.

    The plugin's image decides before the engine's, and that before the base's. An engine without
    a base, or whose base has no Debian counterpart, knows the registry alone. Raises BuildError
    like `stages_of`.
    """
    if engine.base is None or engine.base.debian is None:
        return "registry"
    made = [
        stage
        for source in ("registry", "debian")
        for stage in stages_of(
            engine, base_source=source, architecture=architecture, resources=resources
        )
        if stage.tag in tags
    ]
    made.sort(key=lambda stage: UPPERMOST_FIRST[stage.name])
    return made[0].base_source if made else None


def _is_here(stage: Stage, images: Mapping[str, ImageFact]) -> bool:
    image = images.get(stage.tag)
    return image is not None and image.labels.get(labels.FINGERPRINT) == stage.fingerprint


def _why_built(stage: Stage, images: Mapping[str, ImageFact]) -> str:
    older = [
        image
        for image in images.values()
        if image.labels.get(labels.STAGE) == stage.name
        and image.labels.get(labels.ENGINE) == stage.engine
    ]
    if not older:
        return "image is missing"
    changed = [
        name
        for name, digest in sorted(stage.inputs.items())
        if older[0].labels.get(f"{labels.PREFIX}input.{name}", digest) != digest
    ]
    return f"inputs changed: {', '.join(changed) or 'the stage below'}"
