"""`down`: the containers of a deployment end and go, on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import (
    deployments_in,
    find_deployment,
    look_again,
    no_deployment,
    nodes_with,
    refuse_as_worker,
    remove_containers,
)
from sparkdeploy.deploy.lock import deploy_lock
from sparkdeploy.deploy.nodes import ClusterRecord, connect_nodes
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.cluster import this_node
from sparkdeploy.node.facts import is_another
from sparkdeploy.node.node import named
from sparkdeploy.plan.container import container_name
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.deploy.deployments import Inspected
    from sparkdeploy.node.node import Nodes
    from sparkdeploy.settings import Settings


def down(name: str, *, missing_ok: bool = False) -> tuple[str, ...]:
    """Stop and remove one deployment on all of its nodes; return the names of its containers.

    Raises NodeError on a machine that has only a part of what another one heads, and where nothing
    has the name.
    """
    settings = load_settings()
    with (
        connect_nodes(settings, name) as nodes,
        deploy_lock(settings, f"down {name}", name),
    ):
        found = look_again(nodes.here, name)
        if not missing_ok:
            require_known(nodes, name, settings)
        refuse_as_worker(found)
        if found is not None and is_another(found.current.user):
            console.warn(f"{name} was deployed by {found.current.user}")
        return remove_deployment(nodes, name, found, settings)


def down_all() -> tuple[list[str], list[SparkdeployError]]:
    """Stop and remove every deployment of this machine, also when one of them cannot be.

    Returns the names of the containers, and why some of them stayed.
    """
    settings = load_settings()
    with this_node(settings) as nodes:
        found = deployments_in(nodes.here.listing)
    foreign = {it.name: it.current.nodes[0] for it in found.values() if it.is_of_another_head}
    noted = ClusterRecord.below(settings.state_dir).deployments()
    removed: list[str] = []
    errors: list[SparkdeployError] = []
    for name in dict.fromkeys((*found, *noted)):
        if name in foreign:
            # What is noted of it is older than what that head has put here.
            console.warn(f"{name} stays: {foreign[name]} heads it, and this machine is a worker")
            continue
        try:
            with (
                connect_nodes(settings, name) as nodes,
                deploy_lock(settings, "down --all", name),
            ):
                there = look_again(nodes.here, name)
                removed += remove_deployment(nodes, name, there, settings)
        except SparkdeployError as error:
            errors.append(error)
    return removed, errors


def remove_deployment(
    nodes: Nodes, name: str, found: Inspected | None, settings: Settings
) -> tuple[str, ...]:
    """Remove a deployment everywhere; what a node still has that does not answer stays noted.

    `found` is what this node has of it now.
    """
    record = ClusterRecord.below(settings.state_dir)
    facts = found.containers if found is not None else ()
    # config.yaml may have called this machine otherwise when it started them.
    own = {nodes.here.name, *(fact.nodes[0] for fact in facts if fact.nodes and not fact.rank)}
    removed = [*remove_containers(nodes.here.docker, facts)]
    left: list[str] = []
    for other in nodes_with(found, record.nodes(name)):
        if other in own or _is_forgotten(nodes, other, name, settings):
            continue
        try:
            gone = _remove_on(nodes, other, name, own)
        except NodeError as error:
            left.append(other)
            console.warn(
                f"{error.message}; {container_name(name)} may remain there: run `sparkdeploy down "
                f"{name}` again when it is back"
            )
            continue
        removed += [f"{other}:{container}" for container in gone]
    record.note(name, tuple(left))
    return tuple(removed)


def _is_forgotten(nodes: Nodes, other: str, name: str, settings: Settings) -> bool:
    is_configured = nodes.config is not None and other in nodes.config.names
    if is_configured or (nodes.config is None and settings.cluster is not None):
        return False
    console.warn(
        f"{other} is not in config.yaml, and what it may have of {name} is forgotten; on that "
        f"machine: docker rm -f {container_name(name)}"
    )
    return True


def _remove_on(nodes: Nodes, other: str, name: str, heads: set[str]) -> tuple[str, ...]:
    node = nodes.node(other)
    with named(node):
        found = find_deployment(node.docker, name)
        facts = found.containers if found is not None else ()
        ours = tuple(fact for fact in facts if fact.nodes and fact.nodes[0] in heads)
        return remove_containers(node.docker, ours)


def require_known(nodes: Nodes, name: str, settings: Settings) -> None:
    """Raise NodeError where no deployment has the name, and nothing of one is left over."""
    noted = ClusterRecord.below(settings.state_dir).deployments()
    known = dict.fromkeys((*deployments_in(nodes.here.listing), *noted))
    if name not in known:
        raise no_deployment(name, known)
