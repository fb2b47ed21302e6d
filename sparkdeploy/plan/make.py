"""From a recipe to the plan for the nodes that are to serve it: observe, and decide."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from sparkdeploy.checkpoint.repo_files import files_here
from sparkdeploy.checks.survey import Survey, probe
from sparkdeploy.estimate.memory import MemoryClaim, memory_claim
from sparkdeploy.estimate.model import share_of_weights
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ContainerFact, ContainerSpec, ListedContainer
from sparkdeploy.node.node import Nodes
from sparkdeploy.plan.container import KERNEL_LOG, Deployment, HostFolders, rank_spec
from sparkdeploy.plan.folders import cache_folder, read_template, refuse_nesting
from sparkdeploy.plan.images import image_steps, is_built, stages_for, unresolved_tag
from sparkdeploy.plan.observe import observe, paths_on, with_models
from sparkdeploy.plan.observed import ModelFact, Observed, ObservedNode
from sparkdeploy.plan.preflight import preflight
from sparkdeploy.plan.steps import (
    Action,
    CheckpointStep,
    Needs,
    NodePlan,
    NodeRank,
    Plan,
    Topology,
    alone,
    make_topology,
)
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.settings import Settings
from sparkdeploy.units import format_bytes

OVERLAY_WRITE_BYTES = 16 * 10**6
"""An overlay is links, one config and one index; the 122B's index is the largest of them."""
STARTS_AGAIN = "stopped; the same container starts again"
Decision = tuple[Literal[Action.REUSE, Action.START, Action.REPLACE], str, ContainerFact | None]
"""What a node does and why, and the stopped container that starts again."""


def draft_plan(
    resolved: Resolved, settings: Settings, nodes: Nodes, deployment: Deployment
) -> Plan:
    """Look at the nodes and decide; the ways between them are tried when there is work to do."""
    observed = observe(resolved, settings, nodes, deployment)
    plan = decide(resolved, settings, observed, deployment, topology_for(resolved, nodes, observed))
    if plan.topology.is_alone or not plan.has_work:
        return plan
    found = Survey({node.facts.name: node.facts for node in observed.nodes})
    observed = replace(observed, checks=(*observed.checks, *probe(nodes, found)))
    return decide(resolved, settings, observed, deployment, plan.topology)


def decide_again(plan: Plan, settings: Settings, nodes: Nodes) -> Plan:
    """Decide once more when models were fetched; nothing else is looked at again."""
    observed = with_models(plan.observed, plan.resolved.recipe, settings, nodes)
    return decide(plan.resolved, settings, observed, plan.deployment, plan.topology)


def topology_for(resolved: Resolved, nodes: Nodes, observed: Observed) -> Topology:
    """This machine alone, or the nodes of config.yaml that are needed."""
    if nodes.config is None:
        return alone(nodes.here.name)
    gpus = min((node.facts.gpu_count for node in observed.nodes), default=1)
    return make_topology(
        resolved, nodes.config, nodes.here.name, observed.gid_indexes, gpus_per_node=max(gpus, 1)
    )


def decide(
    resolved: Resolved,
    settings: Settings,
    observed: Observed,
    deployment: Deployment,
    topology: Topology | None = None,
) -> Plan:
    refuse_nesting(observed, settings)
    stages = stages_for(
        resolved,
        base_source=observed.base_source,
        architecture=observed.head.facts.architecture,
    )
    engine = next(stage for stage in stages if stage.name == "engine")
    folders = HostFolders(
        cache=cache_folder(resolved, settings, observed, deployment, engine),
        key_file=settings.state_dir / "keys" / deployment.name,
        chat_template=read_template(resolved, settings),
    )
    return make_plan(
        resolved,
        observed,
        stages=stages,
        deployment=deployment,
        folders=folders,
        topology=topology,
    )


def make_plan(
    resolved: Resolved,
    observed: Observed,
    *,
    stages: Sequence[Stage],
    deployment: Deployment,
    folders: HostFolders,
    topology: Topology | None = None,
) -> Plan:
    draft = Plan(
        resolved=resolved,
        deployment=deployment,
        topology=topology or alone(observed.head.facts.name),
        folders=folders,
        observed=observed,
        images=image_steps(stages, observed.head.images),
        checkpoint=_checkpoint_step(observed),
    )
    plan = replace(draft, nodes=tuple(_parts(draft)))
    return replace(plan, findings=tuple(preflight(plan)))


def _checkpoint_step(observed: Observed) -> CheckpointStep:
    if observed.missing:
        reason = f"{observed.missing[0].describe()}; `up` asks, then downloads it"
        return CheckpointStep(Action.FETCH, reason)
    model = observed.model
    if not isinstance(model, ModelFact):
        return CheckpointStep(Action.FETCH, "the model was not looked for")
    if counted := files_here(model.described.names, model.described.indexed):
        return CheckpointStep(Action.REUSE, f"{counted[0]} of {counted[1]} files are here")
    if model.overlay is None:
        return CheckpointStep(Action.REUSE, "the untouched download is mounted")
    if model.overlay.is_complete:
        return CheckpointStep(Action.REUSE, "overlay is complete")
    reason = "overlay is missing"
    if model.fp8_bytes:
        reason += f"; {format_bytes(model.fp8_bytes)} of FP8 tensors to fetch"
    return CheckpointStep(Action.PREPARE, reason, OVERLAY_WRITE_BYTES + model.fp8_bytes)


def _parts(plan: Plan) -> Iterator[NodePlan]:
    """Yield what each node does, by rank."""
    ranks = plan.topology.ranks
    claims, paths_by_rank = {}, {}
    specs: dict[NodeRank, ContainerSpec | None] = {}
    # The uppermost stage's tag; the tag of an unresolved tag is not known yet.
    top, tag = plan.images[-1].stage, unresolved_tag([step.stage for step in plan.images])
    image = top.tag if tag is None else f"<{top.name} on {tag}>"
    for rank in ranks:
        seen = plan.observed.node(rank.node)
        claim = paths = None
        if seen is not None:
            claim = memory_claim(plan.resolved.recipe, plan.resolved.engine, seen.facts)
            paths = paths_on(plan.observed, plan.folders, rank.node)
        claims[rank], paths_by_rank[rank] = claim, paths
        specs[rank] = None
        if paths is not None:
            spec = rank_spec(
                plan.resolved,
                plan.topology,
                rank,
                image=image,
                deployment=plan.deployment,
                paths=paths,
                memory_bytes=claim.needed_bytes if claim is not None else None,
            )
            if seen is not None and seen.facts.shows_kernel_log and spec.gpus != "none":
                spec = replace(spec, devices=(*spec.devices, KERNEL_LOG))
            specs[rank] = spec
    for rank, (action, reason, stopped) in zip(ranks, _actions(plan, specs), strict=True):
        paths = paths_by_rank[rank]
        yield NodePlan(
            rank=rank,
            action=action,
            reason=reason,
            spec=specs[rank],
            folders=paths.folders if paths is not None else None,
            claim=claims[rank],
            needs=_needs(plan, rank, claims[rank]),
            stopped=stopped,
        )


def _actions(plan: Plan, specs: Mapping[NodeRank, ContainerSpec | None]) -> list[Decision]:
    """A rank that still runs cannot join those that start anew: all start, or none."""
    nodes = {rank: plan.observed.node(rank.node) for rank in specs}
    name = plan.deployment.name
    existing = {rank: seen.container(name) if seen else None for rank, seen in nodes.items()}
    decisions = [
        _action(plan, specs[rank], existing[rank])
        if seen is not None
        else (Action.START, "the node does not answer", None)
        for rank, seen in nodes.items()
    ]
    if not any(action.is_work for action, _, _ in decisions):
        return decisions
    stopped = [it for rank in specs if (it := _stopped(specs[rank], existing[rank])) is not None]
    # What starts together was made together.
    if len(stopped) == len(specs) and len({fact.launch for fact in stopped}) == 1:
        return [(Action.START, STARTS_AGAIN, fact) for fact in stopped]
    joins: Decision = (Action.REPLACE, "starts together with the others", None)
    return [decision if decision[0].is_work else joins for decision in decisions]


def _action(plan: Plan, spec: ContainerSpec | None, existing: ListedContainer | None) -> Decision:
    owner = plan.observed.port
    if existing is None:
        return Action.START, "no such deployment", None
    if spec is None or existing.fingerprint != spec.fingerprint():
        return Action.REPLACE, "settings or image changed", None
    if not existing.is_running:
        return Action.REPLACE, f"the container is {existing.state}", None
    if owner is not None and owner.deployment == plan.deployment.name and not owner.is_listening:
        return Action.REUSE, "starting, and as the recipe says", None
    return Action.REUSE, "running as the recipe says", None


def _stopped(spec: ContainerSpec | None, fact: ListedContainer | None) -> ContainerFact | None:
    """Return a container that is what is asked for, and that was stopped; not one that died."""
    # A head that runs was not inspected.
    if not isinstance(fact, ContainerFact) or spec is None:
        return None
    if fact.fingerprint != spec.fingerprint():
        return None
    # The head decides: others may still run, or have died before it stopped them.
    return fact if fact.is_stopped or fact.rank else None


def _needs(plan: Plan, rank: NodeRank, claim: MemoryClaim | None) -> Needs:
    seen = plan.observed.node(rank.node)
    if seen is None:
        return Needs(None, None, None, sent_bytes=None)
    memory_bytes = claim.needed_bytes if claim is not None else None
    weights_bytes = _weights_bytes(plan)
    if not rank.is_head:
        image_bytes, missing_bytes = _engine_bytes(plan, seen), seen.missing_bytes
        known = image_bytes is not None and missing_bytes is not None
        sent_bytes = (image_bytes or 0) + (missing_bytes or 0) if known else None
        return Needs(image_bytes, 0, missing_bytes, memory_bytes, sent_bytes, weights_bytes)
    heavy = {step.stage.name for step in plan.images if step.action.is_work} & {"base", "engine"}
    image_bytes = plan.resolved.engine.build_bytes if heavy else 0
    sizes = [item.missing_bytes for item in plan.observed.missing]
    if None in sizes:
        return Needs(image_bytes, None, None, memory_bytes, 0, weights_bytes)
    missing, model = sum(size or 0 for size in sizes), plan.observed.model
    download_bytes = missing + (model.fp8_bytes if isinstance(model, ModelFact) else 0)
    write_bytes = missing + plan.checkpoint.write_bytes
    return Needs(image_bytes, download_bytes, write_bytes, memory_bytes, 0, weights_bytes)


def _engine_bytes(plan: Plan, seen: ObservedNode) -> int | None:
    """Return the size of the engine's image that a worker lacks; None before the head has it."""
    *_, below, top = (step.stage for step in plan.images)
    if is_built(below, seen.images) or is_built(top, seen.images):
        return 0
    built = plan.observed.head.images.get(below.tag)
    return built.size_bytes if built is not None else plan.resolved.engine.build_bytes


def _weights_bytes(plan: Plan) -> int | None:
    """Return one node's share of the weights; None where nobody knows, or there are none."""
    model, topology = plan.observed.model, plan.topology
    if model is None or model.size_bytes is None:
        return None
    if isinstance(model, ModelFact) and not model.has_weights:
        return None
    size_bytes = model.size_bytes if model.weights_bytes is None else model.weights_bytes
    ranks = topology.tensor_parallel * topology.pipeline_parallel
    ranks_here = ranks * topology.data_parallel // len(topology.ranks)
    return ranks_here * share_of_weights(size_bytes, ranks, model.embedding_bytes)
