"""Containers that were made before, started again together: kept ones, or stopped ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.expectation import expectation_on
from sparkdeploy.deploy.launch import parts_elsewhere
from sparkdeploy.deploy.lock import ranks_lock
from sparkdeploy.deploy.memory import require_memory
from sparkdeploy.deploy.watch import Watch, start_pace
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.container import own_tags
from sparkdeploy.node.node import named
from sparkdeploy.plan.problems import owner_of
from sparkdeploy.recipe.schema import Limits

if TYPE_CHECKING:
    from sparkdeploy.deploy.launch import Launch
    from sparkdeploy.node.container import ListedContainer
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Node, Nodes

Parts = list[tuple["Node", "ListedContainer"]]


def start_again(
    nodes: Nodes, launch: Launch, head: ListedContainer, *, drop_page_cache: bool
) -> None:
    """Start a container of this node, and all parts that it once started with, on their nodes.

    Memory is looked at before each starts, as it was planned then. Raises NodeError or
    SparkdeployError where a part is missing, or its node is in use; nothing was changed then.
    """
    parts = parts_of(nodes, head)
    made_with = {node.name: expectation_on(fact) for node, fact in parts}

    def has_memory(node: Node) -> None:
        expected = made_with[node.name]
        claim = expected.memory if expected is not None else None
        require_memory(node, launch.deployment, claim, drop_page_cache=drop_page_cache)

    with ranks_lock([node for node, _ in parts], launch.command):
        for node in nodes:
            node.forget_listing()
        for node, _ in parts:
            _refuse_others(node, nodes.here.name)
        needed = [node.name for node, _ in parts]
        launch.start(parts, has_memory, parts_elsewhere(nodes, launch.deployment, needed))


def parts_of(nodes: Nodes, head: ListedContainer) -> Parts:
    """Return what is left of the launch that a head's container was part of; workers first."""
    found: Parts = []
    for name in head.nodes[1:]:
        node = nodes.node(name)
        if node.is_here:
            raise NodeError(f"{name} is this machine, and {head.name} names it as a worker")
        with named(node):
            deployment = find_deployment(node.docker, head.deployment)
        facts = deployment.containers if deployment is not None else ()
        fact = next((fact for fact in facts if fact.launch == head.launch), None)
        if fact is None:
            raise SparkdeployError(
                f"{head.name} is one of {len(head.nodes)} parts that started together, and {name} "
                "keeps none of them",
                hint="the earlier recipe brings it back: `sparkdeploy up RECIPE --cluster "
                f"--name {head.deployment}`",
            )
        found.append((node, fact))
    return [*found, (nodes.here, head)]


def watch_parts(launch: Launch, parts: dict[Node, str], host: DockerHost) -> Watch:
    """Return the wait for containers that run, by node; `host` is that of the head.

    It lasts as long as they were given at their first start.
    """
    head_id = next(container_id for node, container_id in parts.items() if node.is_here)
    fact = host.find_container(head_id)
    timeout_s = fact.startup_timeout_s if fact is not None else None
    return Watch(
        deployment=launch.deployment,
        command=launch.command,
        deadline_s=timeout_s if timeout_s is not None else Limits().startup_timeout_s,
        pace=pace_of(host, fact) if fact is not None else launch.command,
        parts=parts,
        settings=launch.settings,
    )


def pace_of(host: DockerHost, fact: ListedContainer) -> str:
    """Return the key under which `up` has remembered what such a start takes."""
    image = host.find_image(fact.image_id)
    tags = own_tags(image.tags) if image is not None else ()
    image_name = tags[0] if tags else fact.image_id
    return start_pace(image_name, fact.labels.get(labels.RECIPE, ""), max(len(fact.nodes), 1))


def _refuse_others(node: Node, head: str) -> None:
    """As `up` does: two launches of several nodes never mix."""
    if node.is_here:
        return
    for fact in node.listing:
        is_part = fact.is_own and fact.is_running and bool(fact.nodes)
        if is_part and (owner := owner_of(fact, node.name)) != head:
            raise NodeError(
                f"{node.name}: in use: {owner}'s cluster deployment {fact.deployment} runs there",
                hint=f"on {owner}: sparkdeploy down {fact.deployment}",
            )
