"""Status, logs and the end of a deployment on the other nodes of its cluster."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from sparkdeploy.commands.cluster_look import configured as configured_nodes
from sparkdeploy.commands.cluster_look import connected, name_here
from sparkdeploy.console import console
from sparkdeploy.deploy import deployments
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import MemberRow
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.node.machines import at_once, named
from sparkdeploy.plan.container import container_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.machines import Cluster
    from sparkdeploy.settings import Settings


def members(settings: Settings) -> dict[str, tuple[MemberRow, ...]]:
    """Return each cluster deployment's other nodes; empty, without asking anybody, when solo."""
    record = ClusterRecord.below(settings.state_dir)
    noted = {name: record.nodes(name) for name in record.deployments()}
    needed = frozenset(node for nodes in noted.values() for node in nodes)
    if not needed:
        return {}
    try:
        with connected(settings, needed) as cluster:
            return {name: _members_of(name, nodes, cluster) for name, nodes in noted.items()}
    except (NodeError, RecipeError) as error:
        # Such as nodes that have gone from config.yaml: other deployments are shown all the same.
        return {name: (MemberRow("cluster", error.message),) for name in noted}


def _members_of(deployment: str, nodes: tuple[str, ...], cluster: Cluster) -> tuple[MemberRow, ...]:
    def look(node: str) -> MemberRow:
        try:
            machine = cluster.machine(node)
            with named(machine):
                fact = machine.docker.find_container(container_name(deployment))
        except NodeError as error:
            return MemberRow(node, f"does not answer ({error.message})")
        if fact is None:
            return MemberRow(node, "no container")
        return MemberRow(
            node, deployments.RUNNING if fact.is_running else f"exited ({fact.exit_code})"
        )

    here = name_here(cluster.config)
    return tuple(at_once(look, [node for node in nodes if node != here]))


def down_elsewhere(deployment: str, settings: Settings) -> tuple[str, ...]:
    """Remove a deployment from the other nodes; return what went, as NODE:CONTAINER.

    What a node that does not answer still has is said and stays noted: the next `down` or `up`
    that reaches the node removes it.
    """
    nodes = ClusterRecord.below(settings.state_dir).nodes(deployment)
    if not nodes:
        return ()
    again = f"run `sparkdeploy down {deployment}` again when it is back"
    return _remove_elsewhere(deployment, nodes, settings, again)


def leave_others(deployment: str, settings: Settings) -> None:
    """Remove a deployment that this machine serves alone from now on from the other nodes.

    Nothing is asked of anybody when it was none of a cluster's. What cannot be removed is said and
    stays noted: this machine's part answers all the same.
    """
    nodes = ClusterRecord.below(settings.state_dir).nodes(deployment)
    if not nodes:
        return
    again = "run the same `sparkdeploy up` again when it is back"
    try:
        removed = _remove_elsewhere(deployment, nodes, settings, again)
    except (NodeError, RecipeError) as error:
        console.warn(f"{error.message}; {container_name(deployment)} may remain on other nodes")
        return
    for name in removed:
        console.info(f"removed {name}: {deployment} is this machine's alone now")


def _remove_elsewhere(
    deployment: str, nodes: tuple[str, ...], settings: Settings, again: str
) -> tuple[str, ...]:
    removed: list[str] = []
    left: list[str] = []
    with connected(settings, frozenset(nodes)) as cluster:
        here = name_here(cluster.config)
        for node in nodes:
            if node == here:
                continue
            try:
                machine = cluster.machine(node)
                with named(machine):
                    gone = deployments.down(machine.docker, deployment)
            except NodeError as error:
                left.append(node)
                console.warn(
                    f"{error.message}; {container_name(deployment)} may remain there: {again}"
                )
                continue
            removed += [f"{node}:{name}" for name in gone]
    ClusterRecord.below(settings.state_dir).note(deployment, tuple(left))
    return tuple(removed)


def noted_deployments(settings: Settings) -> tuple[str, ...]:
    """Return the deployments that may have containers on other nodes."""
    return ClusterRecord.below(settings.state_dir).deployments()


def read_log_of(
    node: str, deployment: str, settings: Settings, *, follow: bool, tail: int | None
) -> Iterator[str]:
    """Yield the log of a deployment's container on one node."""
    known = {item.name for item in configured_nodes(settings).nodes}
    with connected(settings, frozenset({node}) & known or None) as cluster:
        machine = cluster.machine(node)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with named(machine):
            for chunk in deployments.deployment_log(
                machine.docker, deployment, follow=follow, tail=tail
            ):
                yield decoder.decode(chunk)
