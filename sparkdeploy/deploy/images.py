"""Build the image stages a plan asks for, lowest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.console import console, format_bytes
from sparkdeploy.image.build import build_stage
from sparkdeploy.image.compilation import refuse_start
from sparkdeploy.plan.steps import Action

if TYPE_CHECKING:
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.plan.steps import ImageStep, Plan
    from sparkdeploy.settings import Settings


def build_images(plan: Plan, host: DockerHost, settings: Settings) -> None:
    """Build what is missing; raise BuildError with the end of the log when a stage fails."""
    for image in plan.images:
        if image.action is Action.BUILD and image.stage.source is not None:
            # Before the base is fetched: what cannot be compiled is not worth ten gigabytes.
            refuse_start(image.stage, host, settings)
    for image in plan.images:
        if image.action is Action.BUILD:
            _build(image, host, settings)


def _build(image: ImageStep, host: DockerHost, settings: Settings) -> None:
    stage = image.stage
    with console.step(f"image {stage.name}") as step:
        fact = build_stage(host, stage, settings, step)
    console.info(f"  {stage.tag}, {format_bytes(fact.size_bytes)}")
