"""What stands in the way of a plan, said before the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import Verdict
from sparkdeploy.console import format_bytes, format_gib
from sparkdeploy.estimate.memory_claim import memory_claim
from sparkdeploy.plan.container import container_name, container_user
from sparkdeploy.plan.observed import MissingModel, ModelFact
from sparkdeploy.plan.steps import Action, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.estimate.memory_claim import MemoryClaim
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.facts import NodeFact
    from sparkdeploy.plan.container import Deployment
    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.plan.steps import ContainerStep, Needs
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Engine, Recipe


def find_problems(
    resolved: Resolved,
    observed: Observed,
    *,
    findings: Sequence[Finding],
    container: ContainerStep,
    needs: Needs,
    deployment: Deployment,
) -> Iterator[Problem]:
    """Yield everything that can be known to fail before anything is done.

    `findings` are the doctor's, about the machine: those that fail are problems.
    """
    for item in findings:
        if item.verdict is Verdict.FAIL:
            yield Problem(item.check, "node", item.seen, item.fix or "")
    if container.action is not Action.REUSE:
        yield from memory_problems(
            resolved.recipe,
            resolved.engine,
            observed.node,
            model_bytes=_model_bytes(observed),
            freed_bytes=_freed_bytes(observed, deployment),
            promised_bytes=promised_bytes(observed.containers, deployment.name),
        )
    yield from _disk_problems(observed)
    yield from _docker_disk_problems(observed, needs.image_bytes)
    yield from _port_problems(resolved, observed, deployment)
    yield from _model_problems(observed)
    yield from _draft_problems(resolved, observed)
    yield from _owner_problems(observed)


def _model_bytes(observed: Observed) -> int | None:
    return observed.model.size_bytes if observed.model is not None else None


def _freed_bytes(observed: Observed, deployment: Deployment) -> int:
    existing = existing_container(observed, deployment)
    if existing is None or not existing.is_running:
        return 0
    return existing.promised_bytes


def promised_bytes(containers: Iterable[ContainerFact], deployment: str) -> int:
    """Return what the other deployments were planned to take, also those still loading."""
    return sum(
        item.promised_bytes
        for item in containers
        if item.is_running and item.deployment != deployment
    )


def _disk_problems(observed: Observed) -> Iterator[Problem]:
    missing = observed.model if isinstance(observed.model, MissingModel) else None
    free = observed.node.data_free_bytes
    if missing is None or missing.missing_bytes is None or free is None:
        return
    if missing.missing_bytes > free:
        yield Problem(
            "folders.disk",
            "node",
            f"disk: {missing.repo} takes {format_bytes(missing.missing_bytes)}"
            f"{' more' if missing.here_bytes else ''} and the hub cache's "
            f"disk has {format_bytes(free)} free",
            "free some space, or point HF_HOME at another disk",
            blocks="prepare",
        )


def _docker_disk_problems(observed: Observed, image_bytes: int | None) -> Iterator[Problem]:
    free = observed.node.docker_free_bytes
    if image_bytes and free is not None and image_bytes > free:
        root = observed.node.docker.root_dir if observed.node.docker else "docker's folder"
        yield Problem(
            "docker.disk",
            "node",
            f"disk: building the images takes {format_bytes(image_bytes)} and {root} has "
            f"{format_bytes(free)} free",
            "free some space there, or move docker's data-root to another disk",
            blocks="prepare",
        )


def _port_problems(
    resolved: Resolved, observed: Observed, deployment: Deployment
) -> Iterator[Problem]:
    port = observed.port
    if port is None or port.deployment == deployment.name:
        return
    yield Problem(
        "ports.recipe",
        "node",
        f"port {resolved.recipe.serve.port} is in use by {port.owner}",
        "choose another one: --set serve.port=8001",
    )


def _model_problems(observed: Observed) -> Iterator[Problem]:
    for model in (observed.model, observed.drafter):
        if isinstance(model, ModelFact) and model.unreadable:
            first = model.unreadable[0]
            more = f" (and {len(model.unreadable) - 1} more)" if len(model.unreadable) > 1 else ""
            yield Problem(
                "folders.readable",
                "node",
                f"{first} cannot be read by the container's user{more}",
                f"chmod a+rX {first}",
                blocks="prepare",
            )


def _draft_problems(resolved: Resolved, observed: Observed) -> Iterator[Problem]:
    model = observed.model
    if isinstance(model, ModelFact) and not model.has_draft_vocabulary:
        yield Problem(
            "model.draft_vocabulary",
            "node",
            f"draft head: nobody has counted which tokens of {model.name} are frequent",
            f"sparkdeploy checkpoint draft-vocab {resolved.recipe.name} FILE..., over text like "
            "what you will ask for",
            blocks="prepare",
        )


def _owner_problems(observed: Observed) -> Iterator[Problem]:
    """Only root can give the cache and the key to another user than the caller."""
    model = observed.model
    if not isinstance(model, ModelFact):
        return
    uid, _gid = container_user(model)
    if observed.caller_uid not in {0, uid}:
        yield Problem(
            "folders.owner",
            "node",
            f"{model.root} belongs to uid {model.owner_uid}, so the container would run as {uid}, "
            f"whose cache and key uid {observed.caller_uid} cannot make",
            f"sudo chown -R {observed.caller_uid} {model.root}, or run sparkdeploy as root",
            blocks="prepare",
        )


def existing_container(observed: Observed, deployment: Deployment) -> ContainerFact | None:
    """Return the container that has the deployment's name now."""
    wanted = container_name(deployment.name)
    return next((item for item in observed.containers if item.name == wanted), None)


def memory_problems(
    recipe: Recipe,
    engine: Engine,
    node: NodeFact,
    *,
    model_bytes: int | None,
    freed_bytes: int,
    promised_bytes: int = 0,
) -> Iterator[Problem]:
    """Yield what is wrong with the machine's memory for this recipe.

    `freed_bytes` is what a deployment that will be replaced gives back first; `promised_bytes` is
    what the other deployments were planned to take, whether they have taken it yet or not.
    """
    claim = memory_claim(recipe, engine, node)
    if claim is None or node.memory_total_bytes is None:
        return
    needed = claim.needed_bytes
    if engine.runs_on != "cpu" and model_bytes is not None and model_bytes > needed:
        yield Problem(
            "machine.memory",
            "node",
            f"memory: the weights alone take {format_gib(model_bytes)}, and "
            f"{recipe.serve.gpu_memory_utilization:g} of this machine is {format_gib(needed)}",
            "use a machine with more memory, two of them with --cluster, or a smaller model",
        )
        return
    available = node.memory_total_bytes - promised_bytes
    if node.memory_available_bytes is not None:
        available = min(node.memory_available_bytes + freed_bytes, available)
    yield from shortage(claim, available)


def shortage(claim: MemoryClaim, available_bytes: int) -> Iterator[Problem]:
    """Yield the problem when a claim is larger than what is available."""
    if available_bytes < claim.total_bytes:
        yield Problem(
            "machine.memory",
            "node",
            f"memory: {format_gib(claim.needed_bytes)} needed and {format_gib(claim.floor_bytes)} "
            f"kept free for the machine, but only {format_gib(available_bytes)} are available",
            "stop other programs (`sparkdeploy status` shows ours), drop the page cache, or lower "
            "serve.gpu_memory_utilization",
        )
