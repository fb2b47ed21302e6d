"""Preflight checks: what stands in the way of a plan, and what the doctor shows of it.

A new check is one function here, in recipe_checks.py or in model_checks.py, and its name in the
list there. It yields what is wrong, and what is well where that is worth a line of the doctor.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from sparkdeploy.checks.docker import (
    check_context,
    check_low_disk,
    check_nvidia_runtime,
    check_proxy,
    check_rootless,
)
from sparkdeploy.checks.machine import (
    check_gpu,
    check_kho,
    check_other_users,
    check_swap,
    gpu_findings,
)
from sparkdeploy.checks.report import (
    Finding,
    Verdict,
    fail,
    fail_early,
    not_seen,
    ok,
    refusal,
    warn,
)
from sparkdeploy.image.stages import RDMA_PACKAGES
from sparkdeploy.node.container import ListedContainer
from sparkdeploy.plan import model_checks, recipe_checks
from sparkdeploy.plan.container import container_name, has_adapters, wants_rdma
from sparkdeploy.plan.launch import (
    SOCKETS_ALLOWED,
    SOCKETS_COST,
    allows_sockets,
    fabric_env,
    meeting_port,
    uses_sockets,
)
from sparkdeploy.plan.memory import memory
from sparkdeploy.plan.observed import ModelFact, ObservedNode
from sparkdeploy.plan.steps import Action, NodePlan, Plan
from sparkdeploy.units import format_bytes

LOAD_FACTOR = 2


def preflight(plan: Plan) -> Iterator[Finding]:
    """Yield what every check says of a plan; among several nodes each begins with a name."""
    for planned in plan.nodes:
        seen = plan.observed.node(planned.node)
        if seen is None:
            continue
        prefix = "" if plan.topology.is_alone else f"{planned.node}: "
        for of_node in NODE_CHECKS:
            for finding in of_node(plan, planned, seen):
                yield replace(finding, seen=prefix + finding.seen)
    for check in PLAN_CHECKS:
        yield from check(plan)


def gpu(plan: Plan, _part: NodePlan, seen: ObservedNode) -> Iterator[Finding]:
    node, resolved = seen.facts, plan.resolved
    if resolved.engine.runs_on == "cpu":
        return
    # A rehearsal has vLLM's own CPU build, which knows nothing of a fork.
    needs_another = bool(resolved.recipe.preview) or resolved.engine.kind == "image"
    yield check_gpu(
        node.gpu,
        node.gpu_failure,
        node=node.name,
        engine=resolved.engine.name,
        rehearsed=None if needs_another else resolved.called,
    )
    if node.gpu is not None:
        yield from gpu_findings(node.gpu)
        ours = frozenset(item.container_id for item in seen.containers)
        yield check_other_users(node.gpu_processes, ours)
        if node.docker is not None:
            yield check_nvidia_runtime(
                has_runtime=node.docker.has_nvidia_runtime, cdi_device=node.docker.cdi_device
            )
    yield check_kho(node.meminfo)


def engine(_plan: Plan, planned: NodePlan, seen: ObservedNode) -> Iterator[Finding]:
    if seen.facts.docker is not None:
        if planned.rank.is_head:
            yield check_context(seen.facts.docker)
            yield check_proxy(seen.facts.docker)
        yield check_rootless(seen.facts.docker)


def swap(_plan: Plan, planned: NodePlan, seen: ObservedNode) -> Iterator[Finding]:
    if planned.action is not Action.REUSE:
        yield check_swap(seen.facts.meminfo)


def disk(_plan: Plan, planned: NodePlan, seen: ObservedNode) -> Iterator[Finding]:
    """Compare images with docker's disk, and a worker's weights with its own."""
    node, image_bytes = seen.facts, planned.needs.image_bytes or 0
    # `docker load` unpacks the archive beside the layers that it makes of it.
    wanted = image_bytes if planned.rank.is_head else LOAD_FACTOR * image_bytes
    if node.docker_free_bytes is not None and wanted > node.docker_free_bytes:
        doing = "building the images" if planned.rank.is_head else "loading the engine image"
        root = node.docker.root_dir if node.docker else "docker's folder"
        yield fail_early(
            "docker.disk",
            f"disk: {doing} takes {format_bytes(wanted)} and {root} has "
            f"{format_bytes(node.docker_free_bytes)} free",
            "free some space there, or move docker's data-root to another disk",
        )
    free_bytes, missing_bytes = node.data_free_bytes, seen.missing_bytes
    if planned.rank.is_head or free_bytes is None or (missing_bytes or 0) <= free_bytes:
        return
    missing = f"disk: {format_bytes(missing_bytes or 0)} of weights are missing, and their disk has"
    free = f"{format_bytes(free_bytes)} free"
    yield fail_early("folders.disk", f"{missing} {free}", f"free some space on {planned.node}")


def container_name_is_free(plan: Plan, _part: NodePlan, seen: ObservedNode) -> Iterator[Finding]:
    if seen.has_foreign_container:
        name = container_name(plan.deployment.name)
        stays = f"a container named {name} exists that sparkdeploy did not make; it stays"
        fix = f"choose another name with --name, or `docker rename {name} ...`"
        yield fail("deployments.name", stays, fix)


NODE_CHECKS = (engine, gpu, swap, memory, disk, container_name_is_free)


def transport(plan: Plan) -> Iterator[Finding]:
    """Name what a recipe gives away that lets NCCL do without the adapters of config.yaml."""
    ranks = [it.rank for it in plan.nodes if has_adapters(plan.resolved, plan.topology, it.rank)]
    if not ranks:
        return
    fix = "leave it out, unless RDMA does not work there: `sparkdeploy cluster check` says so"
    if uses_sockets(fabric_env(plan.resolved, plan.topology, ranks[0])):
        seen = "the recipe makes NCCL use sockets, and config.yaml names RDMA adapters"
    elif allows_sockets(plan.resolved):
        seen = "the recipe lets NCCL fall back to sockets (backends.warn_only)"
    else:
        return
    yield warn("network.transport", f"{seen}: {SOCKETS_COST}", fix)


def fabric(plan: Plan) -> Iterator[Finding]:
    """Yield what is wrong with the nodes of a cluster and the connections between them."""
    for check in plan.observed.checks:
        if check.verdict is Verdict.FAIL:
            yield replace(check, blocks="prepare")


def ownership(plan: Plan) -> Iterator[Finding]:
    """Nothing that another machine deployed is replaced, and two launches never mix."""
    topology, head = plan.topology, plan.topology.head.node
    for seen in plan.observed.nodes:
        node = seen.facts.name
        for fact in in_the_way(
            seen.containers, node, plan.deployment.name, {head}, of_several=not topology.is_alone
        ):
            owner = owner_of(fact, node)
            kind = "cluster deployment" if fact.nodes else "own deployment"
            does = "runs" if fact.is_running else "is stopped"
            fix = f"on {owner}: sparkdeploy down {fact.deployment}; or choose another --name"
            # One machine alone has not looked into config.yaml.
            if not topology.is_alone and owner not in {*topology.nodes, *topology.left_alone}:
                fix += f"; {owner} is not in config.yaml, and if it has gone for good, on {node}: "
                fix += f"docker rm -f {fact.name}"
            yield fail_early(
                "deployments.owner",
                f"{node}: in use: {owner}'s {kind} {fact.deployment} {does} there, expected "
                f"nothing of another head than {head}",
                fix,
            )


def in_the_way(
    containers: Iterable[ListedContainer],
    node: str,
    deployment: str,
    heads: Container[str],
    *,
    of_several: bool,
) -> Iterator[ListedContainer]:
    """Yield containers of other heads than `heads` that a start would collide with."""
    for fact in containers:
        is_launch_of_several = of_several and fact.is_running and bool(fact.nodes)
        has_claim = fact.deployment == deployment or is_launch_of_several
        if has_claim and owner_of(fact, node) not in heads:
            yield fact


def owner_of(fact: ListedContainer, node: str) -> str:
    """Return the node that started a container which was found on `node`: its deployment's head."""
    return fact.nodes[0] if fact.nodes and fact.rank > 0 else node


def port(plan: Plan) -> Iterator[Finding]:
    owner, name = plan.observed.port, plan.deployment.name
    check, number = "ports.recipe", plan.resolved.recipe.serve.port
    if owner is None or owner.deployment == name:
        yield ok(check, f"port {number} is free, or {name}'s own")
        return
    seen = f"port {number} is in use by {owner.describe()}"
    yield fail(check, seen, "choose another one: --set serve.port=8001")


def meeting_port_is_free(plan: Plan) -> Iterator[Finding]:
    """Name who leads other nodes from the head by the same ports."""
    if plan.topology.is_alone or not any(planned.action.is_work for planned in plan.nodes):
        return
    for fact in plan.observed.head.containers:
        is_head_of_others = fact.is_running and fact.rank == 0 and bool(fact.nodes)
        if is_head_of_others and fact.deployment != plan.deployment.name:
            yield fail(
                "ports.cluster",
                f"{plan.head.node}: in use: deployment {fact.deployment} runs from there over "
                f"{', '.join(fact.nodes)}, and the nodes of both would meet at port "
                f"{meeting_port(plan.topology)}",
                f"sparkdeploy down {fact.deployment}; or serve one of the two without --cluster",
            )


def rdma_libraries(plan: Plan) -> Iterator[Finding]:
    """Name what a finished engine image lacks; one that is to be built is looked into then."""
    wanted = any(wants_rdma(plan.resolved, plan.topology, planned.rank) for planned in plan.nodes)
    images = plan.observed.head.images
    engine = next(
        (images.get(it.stage.tag) for it in plan.images if it.stage.name == "engine"), None
    )
    missing = engine.proof.get("rdma_missing") if engine is not None else None
    if wanted and isinstance(missing, dict) and missing and not allows_sockets(plan.resolved):
        yield fail_early(
            "docker.rdma",
            f"engine {plan.resolved.engine.name} cannot reach RDMA adapters: "
            f"{'; '.join(map(str, missing.values()))}",
            f"install {', '.join(RDMA_PACKAGES)} in that image, or let NCCL use sockets: "
            f"{SOCKETS_ALLOWED}",
        )


PLAN_CHECKS = (
    transport,
    fabric,
    ownership,
    port,
    meeting_port_is_free,
    rdma_libraries,
    *recipe_checks.CHECKS,
    *model_checks.CHECKS,
)


def refuse_to_start(plan: Plan, problems: Sequence[Finding] | None = None) -> None:
    _refuse(plan, plan.problems if problems is None else problems, "start")


def refuse_to_prepare(plan: Plan) -> None:
    _refuse(plan, [item for item in plan.problems if item.blocks == "prepare"], "be prepared")


def _refuse(plan: Plan, problems: Sequence[Finding], what: str) -> None:
    if problems:
        where = ", ".join(plan.topology.nodes)
        raise refusal(f"{plan.resolved.recipe.name} cannot {what} on {where}", problems)


def doctor_findings(plan: Plan) -> Iterator[Finding]:
    """Yield what the checks say of a plan, and of what it stands on."""
    yield from plan.findings
    node = plan.observed.head.facts
    is_told = any(item.check == "docker.disk" for item in plan.findings)
    if not is_told and node.docker is not None and node.docker_free_bytes is not None:
        yield check_low_disk(node.docker, node.docker_free_bytes)
    yield _model(plan)
    if node.docker is not None:
        yield _image(plan)


def _model(plan: Plan) -> Finding:
    check = "folders.model"
    if plan.observed.missing:
        missing = plan.observed.missing[0]
        return warn(check, missing.describe(), missing.fetch_command)
    model = plan.observed.model
    if not isinstance(model, ModelFact):
        return not_seen(check, "the model was not looked for")
    return ok(check, f"{model.root}, {format_bytes(model.size_bytes)}")


def _image(plan: Plan) -> Finding:
    check, step = "docker.image", plan.images[-1]
    image = plan.observed.head.images.get(step.stage.tag)
    if image is None or step.action is not Action.REUSE:
        # What it will be called depends on the base, and no registry was asked for that here.
        return ok(check, f"{plan.resolved.engine.name} has no such image yet; `up` makes it")
    if step.stage.name == "guard":
        return ok(check, f"{step.stage.tag}: {plan.resolved.engine.image} as it is, and the guard")
    rebuild = f"sparkdeploy image rm {step.stage.tag}, then `sparkdeploy up` builds it anew"
    if not image.proof:
        return warn(check, f"{step.stage.tag} has no record of what it holds", rebuild)
    if image.proof.get("selfcheck") != "fits":
        return fail(check, f"{step.stage.tag}: the plugin does not fit its vLLM", rebuild)
    return ok(check, f"{step.stage.tag}: vLLM {image.proof.get('vllm')}, the plugin fits")
