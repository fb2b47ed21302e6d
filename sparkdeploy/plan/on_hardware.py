"""Plans for machines that are only named: what `up` would do there, where nothing runs yet."""

import os
from dataclasses import replace

from sparkdeploy.estimate.hardware import HERE, Hardware
from sparkdeploy.node.facts import GpuFact, NodeFact
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.images import choose_base_source
from sparkdeploy.plan.make import decide
from sparkdeploy.plan.models import locate_companion, locate_model
from sparkdeploy.plan.observed import Observed, ObservedNode
from sparkdeploy.plan.steps import NodeRank, Plan, Topology, alone, for_cluster
from sparkdeploy.recipe.cluster_sizes import nodes_needed
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.settings import Settings

OF_THIS_MACHINE = frozenset({"folders", "docker", "ports", "deployments", "network"})
"""Groups of checks that say nothing of another machine."""


def plan_on(
    hardware: Hardware,
    resolved: Resolved,
    settings: Settings,
    deployment: Deployment,
    *,
    cluster: bool = False,
) -> Plan:
    """Return the plan for one such machine, or with `cluster` for as many as the recipe takes.

    Models are looked for here. Raises RecipeError for sizes that no nodes of one GPU serve.
    """
    resolved = for_cluster(resolved) if cluster else resolved
    recipe, sizes = resolved.recipe, resolved.recipe.cluster
    count = nodes_needed(sizes, gpus_per_node=1) if cluster else 1
    first = "this machine" if hardware.name == HERE else hardware.name
    names = [first, *(f"{first}-{number + 1}" for number in range(1, count))]
    observed = Observed(
        nodes=tuple(ObservedNode(_fact_of(hardware, name)) for name in names),
        base_source=choose_base_source(
            resolved.engine, hardware.architecture, (), settings, asked=None
        ),
        model=locate_model(recipe, settings).fact,
        companions=tuple(locate_companion(it, settings) for it in recipe.companions),
        caller_uid=os.geteuid(),
    )
    topology = alone(first)
    if count > 1:
        topology = Topology(
            tuple(NodeRank(name, number) for number, name in enumerate(names)),
            *(sizes.tensor_parallel, sizes.pipeline_parallel, sizes.data_parallel),
            sizes.backend,
        )
    plan = decide(resolved, settings, observed, deployment, topology)
    kept = (it for it in plan.findings if it.group not in OF_THIS_MACHINE)
    return replace(plan, findings=tuple(kept))


def _fact_of(hardware: Hardware, name: str) -> NodeFact:
    """Return a machine whose memory is free; that of its processor is not known beside a GPU's."""
    own_bytes = None if hardware.shares_memory else hardware.memory_bytes
    shared_bytes = hardware.memory_bytes if hardware.shares_memory else None
    gpu = GpuFact(hardware.gpu, memory_bytes=own_bytes) if hardware.gpu else None
    return NodeFact(
        name,
        hardware.architecture,
        shared_bytes,
        shared_bytes,
        gpu=gpu,
        docker=None,
        gpu_count=1 if gpu else 0,
    )
