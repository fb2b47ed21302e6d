"""Look at nodes and models; change nothing, and name what could not be seen."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checks.survey import compare, survey
from sparkdeploy.node import ports
from sparkdeploy.node.node import at_once, named
from sparkdeploy.plan.container import container_name
from sparkdeploy.plan.images import choose_base_source
from sparkdeploy.plan.launch import bound_host
from sparkdeploy.plan.models import (
    conversion_of,
    expected_model,
    locate_companion,
    locate_model,
)
from sparkdeploy.plan.observed import MissingModel, ModelFact, Observed, ObservedNode
from sparkdeploy.plan.paths import PathMapping, compare_tree, sync_trees

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.checks.survey import Survey
    from sparkdeploy.node.container import ListedContainer
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.node.ports import PortOwner
    from sparkdeploy.plan.container import Deployment
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe
    from sparkdeploy.settings import Settings


def observe(
    resolved: Resolved,
    settings: Settings,
    nodes: Nodes,
    deployment: Deployment,
    *,
    found: Survey | None = None,
    asks_registry: bool = True,
) -> Observed:
    """Collect every fact that a plan needs; `unobserved` names what could not be seen.

    The nodes are asked unless `found` has what they said. Without `asks_registry` it is assumed to
    answer, because nothing is going to be built.
    """
    recipe = resolved.recipe
    found = found or survey(nodes, settings.hub_cache)
    if nodes.here.name not in found.seen:
        raise found.failures[nodes.here.name]
    wanted = container_name(deployment.name)
    ready = [node for node in nodes if node.name in found.seen]
    seen = at_once(lambda node: _observe_node(node, found, wanted), ready)
    head = seen[0]
    asked = nodes.here.docker if head.facts.docker is not None and asks_registry else None
    observed = Observed(
        nodes=tuple(seen),
        base_source=choose_base_source(
            resolved.engine, head.facts.architecture, head.images, settings, asked
        ),
        port=_port_owner(recipe.serve.port, deployment, head.containers),
        checks=compare(nodes, found),
        gid_indexes=found.gid_indexes(nodes),
        caller_uid=os.geteuid(),
        unobserved=tuple(_unobserved(head)),
    )
    return with_models(observed, recipe, settings, nodes)


def with_models(observed: Observed, recipe: Recipe, settings: Settings, nodes: Nodes) -> Observed:
    """Return what was observed with the models as their files are now, on every node."""
    model = locate_model(recipe, settings).fact
    companions = tuple(locate_companion(weights, settings) for weights in recipe.companions)
    head, *others = observed.nodes
    workers = (_with_weights(item, head, (model, *companions), nodes) for item in others)
    return replace(observed, nodes=(head, *workers), model=model, companions=companions)


def with_expected_models(observed: Observed, recipe: Recipe, settings: Settings) -> Observed:
    """Return what was seen as if nothing were to be downloaded."""
    uid, conversion = observed.caller_uid, conversion_of(recipe, settings)
    companions = (expected_model(it, None, uid, settings) for it in observed.companions)
    model = observed.model and expected_model(observed.model, conversion, uid, settings)
    return replace(observed, model=model, companions=tuple(companions))


def _observe_node(node: Node, found: Survey, wanted: str) -> ObservedNode:
    fact = found.seen[node.name]
    if fact.docker is None:
        return ObservedNode(fact)
    with named(node):
        images = {tag: image for image in node.docker.own_images() for tag in image.tags}
        containers = [item for item in node.listing if item.is_own]
        existing = next((item for item in containers if item.name == wanted), None)
        if existing is not None and existing.is_running and not existing.rank:
            return ObservedNode(fact, images, tuple(containers))
        # A list does not say how one ended, and has none that another program made.
        inspected = node.docker.find_container(wanted)
        is_own = inspected is not None and inspected.is_own
        others = tuple(item for item in containers if item is not existing)
        return ObservedNode(
            fact,
            images,
            (*others, inspected) if inspected is not None and is_own else others,
            has_foreign_container=inspected is not None and not is_own,
        )


def _with_weights(
    seen: ObservedNode,
    head: ObservedNode,
    models: tuple[ModelFact | MissingModel | None, ...],
    nodes: Nodes,
) -> ObservedNode:
    """Look at what a node has of the model's files, and count what it lacks."""
    if head.facts.fabric is None or seen.facts.fabric is None:
        return seen
    mapping, node = PathMapping(head.facts.fabric, seen.facts.fabric), nodes.node(seen.facts.name)
    compared = [compare_tree(tree, nodes.here, node) for tree in sync_trees(models, None, mapping)]
    missing = sum(item.missing_bytes for item in compared)
    # What is still to be fetched is sent from the head afterwards, all of it.
    to_come = [model.size_bytes for model in models if isinstance(model, MissingModel)]
    known = [size_bytes for size_bytes in to_come if size_bytes is not None]
    whole = missing + sum(known) if len(known) == len(to_come) else None
    shared = {item.root: item.shared for item in compared}
    return replace(seen, missing_bytes=whole, shared=shared)


def _unobserved(head: ObservedNode) -> Iterator[str]:
    if head.facts.docker is None:
        yield "docker: images and containers are unknown, for it does not answer"
    if head.facts.gpu is None:
        yield "GPU: nvidia-smi is missing or finds none"


def _port_owner(
    port: int, deployment: Deployment, containers: tuple[ListedContainer, ...]
) -> PortOwner | None:
    """A deployment of ours owns its port also while it starts, and is not listening yet."""
    owner = ports.port_owner(port, containers)
    if owner.deployment is None and ports.is_port_free(
        port, bound_host(is_public=deployment.is_public)
    ):
        return None
    return owner
