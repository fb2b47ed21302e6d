"""From a recipe to the plan for the nodes that are to serve it: observe, and decide."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checks.survey import Survey, probe
from sparkdeploy.plan.caches import cache_folder, refuse_nesting
from sparkdeploy.plan.container import HostFolders
from sparkdeploy.plan.formation import alone, form_up
from sparkdeploy.plan.images import stages_for
from sparkdeploy.plan.make import make_plan
from sparkdeploy.plan.observe import observe, with_models
from sparkdeploy.plan.template import read_template

if TYPE_CHECKING:
    from sparkdeploy.node.node import Nodes
    from sparkdeploy.plan.container import Deployment
    from sparkdeploy.plan.formation import Formation
    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


def draft_plan(
    resolved: Resolved, settings: Settings, nodes: Nodes, deployment: Deployment
) -> Plan:
    """Look at the nodes and decide; the ways between them are tried when there is work to do."""
    observed = observe(resolved, settings, nodes, deployment)
    plan = decide(resolved, settings, observed, deployment, form(resolved, nodes, observed))
    if plan.formation.is_alone or not plan.has_work:
        return plan
    found = Survey({node.facts.name: node.facts for node in observed.nodes})
    observed = replace(observed, checks=(*observed.checks, *probe(nodes, found)))
    return decide(resolved, settings, observed, deployment, plan.formation)


def decide_again(plan: Plan, settings: Settings, nodes: Nodes) -> Plan:
    """Decide once more when models were fetched; nothing else is looked at again."""
    observed = with_models(plan.observed, plan.resolved.recipe, settings, nodes)
    return decide(plan.resolved, settings, observed, plan.deployment, plan.formation)


def form(resolved: Resolved, nodes: Nodes, observed: Observed) -> Formation:
    """This machine alone, or the nodes of config.yaml that are needed."""
    if nodes.config is None:
        return alone(nodes.here.name)
    gpus = min((node.facts.gpu_count for node in observed.nodes), default=1)
    return form_up(
        resolved, nodes.config, nodes.here.name, observed.gid_indexes, gpus_per_node=max(gpus, 1)
    )


def decide(
    resolved: Resolved,
    settings: Settings,
    observed: Observed,
    deployment: Deployment,
    formation: Formation | None = None,
) -> Plan:
    """Return the plan for what was observed.

    Raises CheckpointError when the model's folder and sparkdeploy's own lie within each other.
    """
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
        formation=formation,
    )
