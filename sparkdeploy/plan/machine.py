"""What the doctor's checks say of a plan's machine and recipe; failing ones are its problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.docker import check_nvidia_runtime
from sparkdeploy.checks.machine import (
    check_gpu,
    check_other_users,
    check_page_cache,
    check_swap,
    gpu_findings,
)
from sparkdeploy.checks.recipe import trust_findings
from sparkdeploy.plan.steps import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.plan.steps import ContainerStep, Needs
    from sparkdeploy.recipe.load import Resolved


def machine_findings(
    resolved: Resolved, observed: Observed, *, container: ContainerStep, needs: Needs
) -> Iterator[Finding]:
    """Yield what every check says that matters for this plan, good and bad."""
    on_gpu = resolved.engine.runs_on != "cpu"
    if on_gpu:
        yield from _gpu_findings(resolved, observed)
    # What runs already has its memory; a finding about it would only be noise.
    if container.action is not Action.REUSE:
        gpu = observed.node.gpu if on_gpu else None
        yield check_swap(observed.node.meminfo)
        if gpu is not None and gpu.memory_bytes is None:
            yield check_page_cache(observed.node.meminfo, needs.memory_bytes)
    yield from trust_findings(resolved.recipe)


def _gpu_findings(resolved: Resolved, observed: Observed) -> Iterator[Finding]:
    node = observed.node
    yield check_gpu(
        node.gpu,
        node.gpu_failure,
        node=node.name,
        engine=resolved.engine.name,
        recipe=resolved.recipe.name,
    )
    if node.gpu is None:
        return
    yield from gpu_findings(node.gpu)
    ours = frozenset(item.container_id for item in observed.containers)
    yield check_other_users(node.gpu_processes, ours)
    if node.docker is not None:
        yield check_nvidia_runtime(node.docker)
