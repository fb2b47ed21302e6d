"""What stands in the way of a plan, said before the wait."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import Verdict, fail
from sparkdeploy.errors import Mistakes, NodeError
from sparkdeploy.image.stages import RDMA_PACKAGES
from sparkdeploy.plan.backends import SOCKETS_ALLOWED, allows_sockets
from sparkdeploy.plan.container import container_name, wants_rdma
from sparkdeploy.plan.launch import meeting_port
from sparkdeploy.plan.model_problems import (
    architecture_problems,
    model_disk_problems,
    model_problems,
)
from sparkdeploy.plan.steps import Action
from sparkdeploy.recipe.mods import proposed_setting
from sparkdeploy.recipe.words import shown
from sparkdeploy.units import format_bytes, format_gib

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.estimate.memory_claim import MemoryClaim
    from sparkdeploy.node.container import ListedContainer
    from sparkdeploy.plan.container import Deployment
    from sparkdeploy.plan.observed import ObservedNode
    from sparkdeploy.plan.steps import Part, Plan

LOAD_FACTOR = 2

MOST_MACHINES = 8
"""No message advises more: what the design is for."""


def find_problems(plan: Plan, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield what must be solved before a plan is applied, the failures of `findings` first."""
    yield from (item for item in findings if item.verdict is Verdict.FAIL)
    for check in plan.observed.checks:
        if check.verdict is Verdict.FAIL:
            yield replace(check, blocks="prepare")
    yield from _missing_mods(plan)
    yield from architecture_problems(plan)
    yield from _recipe_problems(plan)
    yield from ownership_problems(plan)
    for part in plan.parts:
        seen = plan.observed.node(part.node)
        if seen is not None:
            yield from _problems_of_part(plan, part, seen)
    yield from model_disk_problems(plan.observed)
    yield from _port_problems(plan)
    yield from _rdma_problems(plan)
    yield from model_problems(plan)


def _missing_mods(plan: Plan) -> Iterator[Finding]:
    """Say which mods are not here: nobody knows what they would make of the image."""
    for mod in plan.resolved.mods:
        if mod.is_missing:
            name = shown(mod.name)
            lacks = f"the source {mod.source} has no" if mod.source else "there is no"
            yield fail(
                "image.mods",
                f"{lacks} mod {name}: its run.sh was looked for {mod.places()}",
                f"name its folder: {proposed_setting(plan.resolved.mods)}; or serve without mods: "
                "--set 'mods=[]'",
                blocks="prepare",
            )


def _recipe_problems(plan: Plan) -> Iterator[Finding]:
    """Name what the recipe asks for and this engine, or this number of nodes, cannot give."""
    recipe, count = plan.resolved.recipe, len(plan.parts)
    # A rehearsal runs the CPU engine, whatever the recipe needs.
    if recipe.preview and plan.resolved.engine.kind not in ("image", "cpu"):
        needs = f"{recipe.name} needs {recipe.preview}"
        fix = "name its image: --set engine=image --set image=NAME:TAG"
        yield fail("recipe.preview", needs, fix, blocks="prepare")
    if count < recipe.cluster.least_nodes:
        needs = f"{recipe.name} needs {recipe.cluster.least_nodes} nodes (cluster.min_nodes), and "
        fix = f"sparkdeploy up {plan.resolved.called} --cluster"
        yield fail("recipe.nodes", f"{needs}this plan has {count}", fix, blocks="prepare")
    # The guard of a head can end its own part: those of other nodes would keep their memory.
    if recipe.limits.idle_stop_s is not None and not plan.topology.is_alone:
        seen = "limits.idle_stop_s stops a deployment of one machine, and this plan has "
        fix = "--set limits.idle_stop_s=null, or serve it on one machine with --solo"
        yield fail("recipe.idle", f"{seen}{count} nodes", fix, blocks="prepare")


def _problems_of_part(plan: Plan, part: Part, seen: ObservedNode) -> Iterator[Finding]:
    prefix = "" if plan.topology.is_alone else f"{part.node}: "
    found = [*_disk_problems(part, seen)]
    if seen.has_stranger:
        name = container_name(plan.deployment.name)
        stays = f"a container named {name} exists that sparkdeploy did not make; it stays"
        fix = f"choose another name with --name, or `docker rename {name} ...`"
        found.append(fail("deployments.name", stays, fix))
    if part.action is not Action.REUSE:
        found += _memory(plan, part, seen)
    for problem in found:
        yield replace(problem, seen=prefix + problem.seen)


def ownership_problems(plan: Plan) -> Iterator[Finding]:
    """Nothing that another machine deployed is replaced, and two launches never mix."""
    heads, of_several = {plan.topology.head.node}, not plan.topology.is_alone
    for seen in plan.observed.nodes:
        node, name = seen.facts.name, plan.deployment.name
        for fact in in_the_way(seen.containers, node, name, heads, of_several=of_several):
            yield _in_use(plan, node, fact, owner_of(fact, node))


def in_the_way(
    containers: Iterable[ListedContainer],
    node: str,
    deployment: str,
    heads: Container[str],
    *,
    of_several: bool,
) -> Iterator[ListedContainer]:
    """Yield containers on a node that another machine than `heads` started.

    Those of the same name are in the way of any start, and what runs over several nodes in that of
    another start over several.
    """
    for fact in containers:
        is_launch_of_several = of_several and fact.is_running and bool(fact.nodes)
        has_claim = fact.deployment == deployment or is_launch_of_several
        if has_claim and owner_of(fact, node) not in heads:
            yield fact


def _in_use(plan: Plan, node: str, fact: ListedContainer, owner: str) -> Finding:
    topology = plan.topology
    kind = "cluster deployment" if fact.nodes else "own deployment"
    does = "runs" if fact.is_running else "is stopped"
    # One machine alone has not looked into config.yaml.
    is_known = topology.is_alone or owner in {*topology.nodes, *topology.left_alone}
    fix = f"on {owner}: sparkdeploy down {fact.deployment}; or choose another --name"
    if not is_known:
        fix += f"; {owner} is not in config.yaml, and if it has gone for good, on {node}: "
        fix += f"docker rm -f {fact.name}"
    return fail(
        "deployments.owner",
        f"{node}: in use: {owner}'s {kind} {fact.deployment} {does} there, expected nothing of "
        f"another head than {topology.head.node}",
        fix,
        blocks="prepare",
    )


def owner_of(fact: ListedContainer, node: str) -> str:
    """Return the node that started a container which was found on `node`: its deployment's head."""
    return fact.nodes[0] if fact.nodes and fact.rank > 0 else node


def _memory(plan: Plan, part: Part, seen: ObservedNode) -> Iterator[Finding]:
    claim, weights_bytes, node = part.claim, part.needs.weights_bytes, seen.facts
    if claim is None or node.memory_total_bytes is None:
        return
    if claim.vllm_bytes is not None and (weights_bytes or 0) > claim.vllm_bytes:
        whose = "machine's" if claim.vllm_bytes == claim.needed_bytes else "GPU's"
        yield fail("machine.memory", *_too_large(plan, weights_bytes or 0, claim.vllm_bytes, whose))
        return
    # What is promised to others counts, whether they have taken it yet or not.
    available = node.memory_total_bytes - promised_bytes(seen.containers, plan.deployment.name)
    if node.memory_available_bytes is not None:
        existing = existing_container(seen, plan.deployment)
        # A container that will be replaced gives back first what it holds.
        freed = existing.promised_bytes if existing is not None and existing.is_running else 0
        available = min(node.memory_available_bytes + freed, available)
    yield from shortage(claim, available)


def _too_large(plan: Plan, weights_bytes: int, vllm_bytes: int, whose: str) -> tuple[str, str]:
    """Return the message and the fix."""
    share = plan.resolved.recipe.serve.gpu_memory_utilization
    has = f"vLLM may use {format_gib(vllm_bytes)} ({share:g} of the {whose} memory)"
    if plan.topology.is_alone:
        needed = math.ceil(weights_bytes / vllm_bytes)
        divided = f", {needed} such machines with --cluster" if needed <= MOST_MACHINES else ""
        return (
            f"memory: the weights alone take {format_gib(weights_bytes)}, and {has}",
            f"use a machine with more memory{divided}, or a smaller model",
        )
    return (
        f"memory: its share of the weights alone takes {format_gib(weights_bytes)}, and {has}",
        f"divide the model among more nodes than {len(plan.parts)}: "
        f"--set cluster.tensor_parallel={2 * plan.topology.tensor_parallel}, or a smaller model",
    )


def promised_bytes(containers: Iterable[ListedContainer], deployment: str) -> int:
    """Return what the other deployments were planned to take, also those still loading."""
    return sum(
        item.promised_bytes
        for item in containers
        if item.is_running and item.deployment != deployment
    )


def _disk_problems(part: Part, seen: ObservedNode) -> Iterator[Finding]:
    """Hold images against docker's disk, and a worker's weights against its own."""
    node, image_bytes = seen.facts, part.needs.image_bytes or 0
    # `docker load` unpacks the archive beside the layers that it makes of it.
    wanted = image_bytes if part.seat.is_head else LOAD_FACTOR * image_bytes
    if node.docker_free_bytes is not None and wanted > node.docker_free_bytes:
        doing = "building the images" if part.seat.is_head else "loading the engine image"
        root = node.docker.root_dir if node.docker else "docker's folder"
        yield fail(
            "docker.disk",
            f"disk: {doing} takes {format_bytes(wanted)} and {root} has "
            f"{format_bytes(node.docker_free_bytes)} free",
            "free some space there, or move docker's data-root to another disk",
            blocks="prepare",
        )
    free, missing_bytes = node.data_free_bytes, seen.missing_bytes
    if part.seat.is_head or free is None or missing_bytes is None or missing_bytes <= free:
        return
    yield fail(
        "folders.disk",
        f"disk: {format_bytes(missing_bytes)} of weights are missing, and their disk has "
        f"{format_bytes(free)} free",
        f"free some space on {part.node}",
        blocks="prepare",
    )


def _port_problems(plan: Plan) -> Iterator[Finding]:
    """Name who has the recipe's port, or leads other nodes from the head by the same ports."""
    port, name = plan.observed.port, plan.deployment.name
    if port is not None and port.deployment != name:
        yield fail(
            "ports.recipe",
            f"port {plan.resolved.recipe.serve.port} is in use by {port.describe()}",
            "choose another one: --set serve.port=8001",
        )
    if plan.topology.is_alone or not any(part.action.is_work for part in plan.parts):
        return
    for fact in plan.observed.head.containers:
        is_head_of_others = fact.is_running and fact.rank == 0 and bool(fact.nodes)
        if is_head_of_others and fact.deployment != name:
            yield fail(
                "ports.cluster",
                f"{plan.head.node}: in use: deployment {fact.deployment} runs from there over "
                f"{', '.join(fact.nodes)}, and the nodes of both would meet at port "
                f"{meeting_port(plan.topology)}",
                f"sparkdeploy down {fact.deployment}; or serve one of the two without --cluster",
            )


def _rdma_problems(plan: Plan) -> Iterator[Finding]:
    """Say what a finished engine image lacks; one that is to be built is looked into then."""
    wanted = any(wants_rdma(plan.resolved, plan.topology, part.seat) for part in plan.parts)
    images = plan.observed.head.images
    engine = next(
        (images.get(it.stage.tag) for it in plan.images if it.stage.name == "engine"), None
    )
    missing = engine.proof.get("rdma_missing") if engine is not None else None
    if wanted and isinstance(missing, dict) and missing and not allows_sockets(plan.resolved):
        yield fail(
            "docker.rdma",
            f"engine {plan.resolved.engine.name} cannot reach RDMA adapters: "
            f"{'; '.join(map(str, missing.values()))}",
            f"install {', '.join(RDMA_PACKAGES)} in that image, or let NCCL use sockets: "
            f"{SOCKETS_ALLOWED}",
            blocks="prepare",
        )


def existing_container(seen: ObservedNode, deployment: Deployment) -> ListedContainer | None:
    wanted = container_name(deployment.name)
    return next((item for item in seen.containers if item.name == wanted), None)


def shortage(claim: MemoryClaim, available_bytes: int) -> Iterator[Finding]:
    if available_bytes < claim.total_bytes:
        yield fail(
            "machine.memory",
            f"memory: {format_gib(claim.needed_bytes)} needed and {format_gib(claim.floor_bytes)} "
            f"kept free for the machine, but only {format_gib(max(available_bytes, 0))} are "
            "available",
            "stop other programs (`sparkdeploy status` shows ours), drop the page cache, or lower "
            "serve.gpu_memory_utilization",
        )


def refuse_to_start(plan: Plan) -> None:
    """Raise NodeError when the plan has any problem."""
    _refuse(plan, plan.problems, "start")


def refuse_to_prepare(plan: Plan) -> None:
    """Raise NodeError for problems that stand in the way of images and checkpoints already."""
    _refuse(plan, [item for item in plan.problems if item.blocks == "prepare"], "be prepared")


def _refuse(plan: Plan, problems: Sequence[Finding], what: str) -> None:
    if not problems:
        return
    name, where = plan.resolved.recipe.name, ", ".join(plan.topology.nodes)
    count = "1 reason" if len(problems) == 1 else f"{len(problems)} reasons"
    lines = [line for item in problems for line in (item.seen, f"    fix: {item.fix}")]
    mistakes = Mistakes("\n".join(lines))
    raise NodeError(f"{name} cannot {what} on {where}, for {count}", detail=mistakes)
