"""A plan in words, one line a step."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from sparkdeploy.console import format_bytes, format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.plan.steps import Plan


def plan_lines(plan: Plan) -> list[str]:
    """Return the plan as lines: recipe, steps, needs, problems, warnings, what was not seen."""
    return [
        *_head(plan),
        *_steps(plan),
        *_needs(plan),
        *_problems(plan),
        *_warnings(plan),
        *_unobserved(plan),
    ]


def dockerfile_text(plan: Plan) -> str:
    """Return every stage's Dockerfile, in the order in which they are built."""
    return "\n".join(
        f"# ---- stage {step.stage.name}: {step.stage.tag}\n{step.stage.dockerfile}"
        for step in plan.images
    )


def arguments_text(plan: Plan) -> str:
    """Return vLLM's command as it would be typed, or why there is none yet."""
    spec = plan.container.spec
    if spec is None:
        return "(the model is not here yet, so its path is unknown)"
    command = spec.command[spec.command.index("--") + 1 :]
    return shlex.join(command)


def container_text(plan: Plan) -> str:
    """Return the container's spec as JSON, or why there is none yet."""
    spec = plan.container.spec
    if spec is None:
        return "(the model is not here yet, so the container's user and mounts are unknown)"
    return json.dumps(spec.as_dict(), indent=2, sort_keys=True)


def _head(plan: Plan) -> Iterator[str]:
    recipe, engine = plan.resolved.recipe, plan.resolved.engine
    yield f"{recipe.name}: {recipe.title}"
    yield f"  engine {engine.name} on {plan.observed.node.name}, deployment {plan.deployment.name}"


def _steps(plan: Plan) -> Iterator[str]:
    for step in plan.images:
        yield f"  {step.action.value} image       {step.stage.tag:<36} {step.reason}"
    model = plan.resolved.recipe.model
    name = model.path or model.repo
    yield f"  {plan.checkpoint.action.value} checkpoint  {name:<36} {plan.checkpoint.reason}"
    container = plan.container
    place = f"sparkdeploy-{plan.deployment.name} on port {plan.resolved.recipe.serve.port}"
    yield f"  {container.action.value} container   {place:<36} {container.reason}"


def _needs(plan: Plan) -> Iterator[str]:
    needs = plan.needs
    download = "unknown" if needs.download_bytes is None else format_bytes(needs.download_bytes)
    write = "unknown" if needs.write_bytes is None else format_bytes(needs.write_bytes)
    memory = "unknown" if needs.memory_bytes is None else format_gib(needs.memory_bytes)
    images = "unknown" if needs.image_bytes is None else format_bytes(needs.image_bytes)
    yield (
        f"  to download {download} of model, to write {write} of checkpoint and {images} of "
        f"images, memory {memory}"
    )


def _problems(plan: Plan) -> Iterator[str]:
    for problem in plan.problems:
        yield f"  x {problem.message}"
        yield f"      fix: {problem.fix}"


def _warnings(plan: Plan) -> Iterator[str]:
    for finding in plan.warnings:
        yield f"  ! {finding.seen}"
        if finding.fix:
            yield f"      fix: {finding.fix}"


def _unobserved(plan: Plan) -> Iterator[str]:
    for sentence in plan.observed.unobserved:
        yield f"  ? {sentence}"
