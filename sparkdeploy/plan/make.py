"""Decide: from a resolved recipe and what was observed to a plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from sparkdeploy import labels
from sparkdeploy.console import format_bytes
from sparkdeploy.estimate.memory_claim import memory_claim
from sparkdeploy.estimate.share import share_of_weights
from sparkdeploy.plan.container import part_spec
from sparkdeploy.plan.findings import machine_findings
from sparkdeploy.plan.formation import alone
from sparkdeploy.plan.image_steps import image_steps
from sparkdeploy.plan.observed import MissingModel, ModelFact
from sparkdeploy.plan.place import place_of
from sparkdeploy.plan.problems import existing_container, find_problems
from sparkdeploy.plan.steps import Action, CheckpointStep, ImageStep, Needs, Part, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.estimate.memory_claim import MemoryClaim
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.plan.container import Deployment, HostFolders
    from sparkdeploy.plan.formation import Formation, Seat
    from sparkdeploy.plan.observed import Observed, ObservedNode
    from sparkdeploy.recipe.load import Resolved

OVERLAY_WRITE_BYTES = 16 * 10**6
"""An overlay is links, one config and one index; the 122B's index is the largest of them."""


@dataclass(frozen=True, slots=True)
class WantedDeployment:
    """What a plan is made for: a recipe, under a name, by the nodes of a formation."""

    resolved: Resolved
    deployment: Deployment
    formation: Formation
    stages: tuple[Stage, ...]
    folders: HostFolders
    """The head's."""


def make_plan(
    resolved: Resolved,
    observed: Observed,
    *,
    stages: Sequence[Stage],
    deployment: Deployment,
    folders: HostFolders,
    formation: Formation | None = None,
) -> Plan:
    """Return the steps that lead from what was observed to what the recipe says.

    Without a formation the one node that was seen serves alone.
    """
    formation = formation or alone(observed.head.facts.name)
    wanted = WantedDeployment(resolved, deployment, formation, tuple(stages), folders)
    images = image_steps(wanted.stages, observed.head.images)
    checkpoint = _checkpoint_step(observed)
    parts = tuple(
        _part(wanted, observed, seat, images=images, checkpoint=checkpoint)
        for seat in formation.seats
    )
    parts = _together(parts)
    findings = tuple(
        finding
        for part in parts
        if (seen := observed.node(part.node)) is not None
        for finding in machine_findings(resolved, seen, part, among=len(formation.seats))
    )
    plan = Plan(
        resolved=resolved,
        deployment=deployment,
        formation=formation,
        folders=folders,
        observed=observed,
        images=images,
        checkpoint=checkpoint,
        parts=parts,
        problems=(),
        findings=findings,
    )
    return replace(plan, problems=tuple(find_problems(plan)))


def _checkpoint_step(observed: Observed) -> CheckpointStep:
    for model in (observed.model, observed.drafter):
        if isinstance(model, MissingModel):
            reason = f"{model.describe()}; `up` asks, then downloads it"
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


def _part(
    wanted: WantedDeployment,
    observed: Observed,
    seat: Seat,
    *,
    images: Sequence[ImageStep],
    checkpoint: CheckpointStep,
) -> Part:
    seen = observed.node(seat.node)
    if seen is None:
        unknown = Needs(None, None, None, None, None)
        return Part(seat, Action.START, "the node does not answer", None, None, None, unknown)
    resolved = wanted.resolved
    claim = memory_claim(resolved.recipe, resolved.engine, seen.facts)
    place = place_of(observed, wanted.folders, seat.node)
    spec = None
    if place is not None:
        spec = part_spec(
            resolved,
            wanted.formation,
            seat,
            image=wanted.stages[-1].tag,
            deployment=wanted.deployment,
            place=place,
        )
        if claim is not None:
            memory = {labels.MEMORY: str(claim.needed_bytes)}
            spec = replace(spec, labels={**spec.labels, **memory})
    action, reason = _done_about(spec, existing_container(seen, wanted.deployment))
    return Part(
        seat,
        action,
        reason,
        spec,
        place.folders if place is not None else None,
        claim,
        _head_needs(wanted, observed, images, checkpoint, claim)
        if seat.is_head
        else _worker_needs(wanted, observed, seen, claim),
    )


def _together(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """A rank that still runs cannot join those that start anew: all start, or none."""
    if not any(part.action.is_work for part in parts):
        return parts
    return tuple(
        part
        if part.action.is_work
        else replace(part, action=Action.REPLACE, reason="starts together with the others")
        for part in parts
    )


def _done_about(
    spec: ContainerSpec | None, existing: ContainerFact | None
) -> tuple[Literal[Action.REUSE, Action.START, Action.REPLACE], str]:
    if existing is None:
        return Action.START, "no such deployment"
    if spec is None or existing.fingerprint != spec.fingerprint():
        return Action.REPLACE, "settings or image changed"
    if not existing.is_running:
        return Action.REPLACE, f"the container is {existing.state}"
    return Action.REUSE, "running as the recipe says"


def _head_needs(
    wanted: WantedDeployment,
    observed: Observed,
    images: Sequence[ImageStep],
    checkpoint: CheckpointStep,
    claim: MemoryClaim | None,
) -> Needs:
    missing = [
        item for item in (observed.model, observed.drafter) if isinstance(item, MissingModel)
    ]
    sizes = [item.missing_bytes for item in missing]
    download = None if None in sizes else sum(size for size in sizes if size is not None)
    fp8_bytes = observed.model.fp8_bytes if isinstance(observed.model, ModelFact) else 0
    heavy = [step for step in images if step.action.is_work and step.stage.name != "plugin"]
    return Needs(
        image_bytes=wanted.resolved.engine.build_bytes if heavy else 0,
        download_bytes=None if download is None else download + fp8_bytes,
        write_bytes=None if download is None else download + checkpoint.write_bytes,
        memory_bytes=claim.needed_bytes if claim is not None else None,
        weights_bytes=_weights_bytes(wanted, observed),
    )


def _worker_needs(
    wanted: WantedDeployment, observed: Observed, seen: ObservedNode, claim: MemoryClaim | None
) -> Needs:
    image_bytes = _engine_bytes(wanted, observed, seen)
    missing_bytes = seen.missing_bytes
    return Needs(
        image_bytes=image_bytes,
        download_bytes=0,
        write_bytes=missing_bytes,
        memory_bytes=claim.needed_bytes if claim is not None else None,
        sent_bytes=None
        if missing_bytes is None or image_bytes is None
        else missing_bytes + image_bytes,
        weights_bytes=_weights_bytes(wanted, observed),
    )


def _engine_bytes(wanted: WantedDeployment, observed: Observed, seen: ObservedNode) -> int | None:
    """Return the size of the engine image that a worker lacks; None before the head has built it.

    The plugin's context, some 200 kB, is not counted.
    """
    *_, engine, plugin = wanted.stages
    steps = image_steps((engine, plugin), seen.images)
    if any(step.action is Action.REUSE for step in steps):
        return 0
    built = observed.head.images.get(engine.tag)
    return built.size_bytes if built is not None else wanted.resolved.engine.build_bytes


def _weights_bytes(wanted: WantedDeployment, observed: Observed) -> int | None:
    """Return one node's share of the weights: its ranks hold a part of each layer."""
    if observed.model is None or observed.model.size_bytes is None:
        return None
    formation = wanted.formation
    copies = formation.tensor_parallel * formation.pipeline_parallel
    ranks = copies * formation.data_parallel // len(formation.seats)
    model = observed.model
    return ranks * share_of_weights(
        model.size_bytes or 0,
        None,
        tensor_parallel=formation.tensor_parallel,
        pipeline_parallel=formation.pipeline_parallel,
        undivided_bytes=model.embedding_bytes if isinstance(model, ModelFact) else 0,
    )
