"""Decide: from a resolved recipe and what was observed to a plan. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.console import format_bytes
from sparkdeploy.estimate.memory_claim import memory_needed_bytes
from sparkdeploy.plan.container import Weights, container_spec
from sparkdeploy.plan.machine import machine_findings
from sparkdeploy.plan.observed import MissingModel, ModelFact
from sparkdeploy.plan.problems import existing_container, find_problems
from sparkdeploy.plan.steps import (
    Action,
    CheckpointStep,
    ContainerStep,
    ImageStep,
    Needs,
    Plan,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.container import ContainerSpec, ImageFact
    from sparkdeploy.plan.container import Deployment, HostFolders
    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.recipe.load import Resolved

OVERLAY_WRITE_BYTES = 16 * 10**6
"""An overlay is links, one config and one index; the 122B's index is the largest of them."""


def make_plan(
    resolved: Resolved,
    observed: Observed,
    *,
    stages: Sequence[Stage],
    deployment: Deployment,
    folders: HostFolders,
) -> Plan:
    """Return the steps that lead from what was observed to what the recipe says."""
    images = tuple(_image_step(stage, observed) for stage in stages)
    checkpoint = _checkpoint_step(observed)
    spec = _wanted_spec(resolved, observed, stages, deployment=deployment, folders=folders)
    container = _container_step(spec, observed, deployment)
    needs = _needs(resolved, observed, images, checkpoint)
    findings = tuple(machine_findings(resolved, observed, container=container, needs=needs))
    problems = find_problems(
        resolved,
        observed,
        findings=findings,
        container=container,
        needs=needs,
        deployment=deployment,
    )
    return Plan(
        resolved=resolved,
        deployment=deployment,
        folders=folders,
        observed=observed,
        images=images,
        checkpoint=checkpoint,
        container=container,
        needs=needs,
        problems=tuple(problems),
        findings=findings,
    )


def _image_step(stage: Stage, observed: Observed) -> ImageStep:
    existing = observed.images.get(stage.tag)
    if existing is not None and existing.labels.get(labels.FINGERPRINT) == stage.fingerprint:
        return ImageStep(stage, Action.REUSE, "inputs unchanged")
    others = [
        image
        for image in observed.images.values()
        if image.labels.get(labels.STAGE) == stage.name
        and image.labels.get(labels.ENGINE) == stage.engine
    ]
    if not others:
        return ImageStep(stage, Action.BUILD, "image is missing")
    return ImageStep(stage, Action.BUILD, f"inputs changed: {_changed_inputs(stage, others[0])}")


def _changed_inputs(stage: Stage, image: ImageFact) -> str:
    changed = [
        name
        for name, digest in sorted(stage.inputs.items())
        if image.labels.get(f"{labels.PREFIX}input.{name}", digest) != digest
    ]
    return ", ".join(changed) or "the stage below"


def _checkpoint_step(observed: Observed) -> CheckpointStep:
    for model in (observed.model, observed.drafter):
        if isinstance(model, MissingModel):
            reason = f"{model.describe()}; `up` asks and fetches it"
            return CheckpointStep(Action.FETCH, reason, model)
    model = observed.model
    if not isinstance(model, ModelFact):
        return CheckpointStep(Action.FETCH, "the model was not looked for", None)
    if model.overlay is None:
        return CheckpointStep(Action.REUSE, "the untouched download is mounted", model)
    if model.overlay.is_complete:
        return CheckpointStep(Action.REUSE, "overlay is complete", model)
    reason = "overlay is missing"
    if model.fp8_bytes:
        reason += f"; {format_bytes(model.fp8_bytes)} of FP8 tensors to fetch"
    return CheckpointStep(Action.PREPARE, reason, model, OVERLAY_WRITE_BYTES + model.fp8_bytes)


def _wanted_spec(
    resolved: Resolved,
    observed: Observed,
    stages: Sequence[Stage],
    *,
    deployment: Deployment,
    folders: HostFolders,
) -> ContainerSpec | None:
    if not isinstance(observed.model, ModelFact) or isinstance(observed.drafter, MissingModel):
        return None
    spec = container_spec(
        resolved,
        Weights(observed.model, observed.drafter),
        image=stages[-1].tag,
        deployment=deployment,
        folders=folders,
    )
    memory = memory_needed_bytes(resolved.recipe, resolved.engine, observed.node)
    if memory is None:
        return spec
    return replace(spec, labels={**spec.labels, labels.MEMORY: str(memory)})


def _container_step(
    spec: ContainerSpec | None, observed: Observed, deployment: Deployment
) -> ContainerStep:
    existing = existing_container(observed, deployment)
    if existing is None:
        return ContainerStep(Action.START, "no such deployment", spec)
    if spec is None or existing.fingerprint != spec.fingerprint():
        return ContainerStep(Action.REPLACE, "settings or image changed", spec)
    if not existing.is_running:
        return ContainerStep(Action.REPLACE, f"the container is {existing.state}", spec)
    return ContainerStep(Action.REUSE, "running as the recipe says", spec)


def _image_bytes(resolved: Resolved, images: Sequence[ImageStep]) -> int | None:
    heavy = [step for step in images if step.action.is_work and step.stage.name != "plugin"]
    return resolved.engine.build_bytes if heavy else 0


def _needs(
    resolved: Resolved,
    observed: Observed,
    images: Sequence[ImageStep],
    checkpoint: CheckpointStep,
) -> Needs:
    missing = [
        item for item in (observed.model, observed.drafter) if isinstance(item, MissingModel)
    ]
    sizes = [item.missing_bytes for item in missing]
    download = None if None in sizes else sum(size for size in sizes if size is not None)
    fp8_bytes = observed.model.fp8_bytes if isinstance(observed.model, ModelFact) else 0
    return Needs(
        image_bytes=_image_bytes(resolved, images),
        download_bytes=None if download is None else download + fp8_bytes,
        write_bytes=None if download is None else download + checkpoint.write_bytes,
        memory_bytes=memory_needed_bytes(resolved.recipe, resolved.engine, observed.node),
    )
