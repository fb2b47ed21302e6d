"""Finish or revert on all nodes of a cluster what a command that died left half done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.commands.cluster_look import configured, connected, name_here
from sparkdeploy.console import console
from sparkdeploy.deploy.changing import crashes_dir, recover
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.recovery import Recovery, abandon, follow
from sparkdeploy.errors import NodeError
from sparkdeploy.node.machines import named
from sparkdeploy.plan.container import container_name

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.machines import Cluster
    from sparkdeploy.settings import Settings


def nodes_of(host: DockerHost, deployment: str, settings: Settings) -> tuple[str, ...]:
    """Return the nodes that may have something of a deployment; empty for one machine's own.

    They are noted, or stand on its containers here; those kept of an earlier time do not count.
    """
    found = find_deployment(host, deployment)
    facts = (found.serving, found.replaced) if found is not None else ()
    named_here = (node for fact in facts if fact is not None for node in nodes_on(fact))
    noted = ClusterRecord.below(settings.state_dir).nodes(deployment)
    return tuple(dict.fromkeys((*noted, *named_here)))


def nodes_on(fact: ContainerFact | None) -> tuple[str, ...]:
    """Return the nodes a container was started on together with others, the head first."""
    return fact.nodes if fact is not None else ()


def end_start_on(nodes: tuple[str, ...], deployment: str, settings: Settings) -> Recovery:
    """Connect to the nodes, and do as `end_start` does."""
    here = name_here(configured(settings))
    with connected(settings, frozenset((*nodes, here))) as cluster:
        return end_start(cluster, deployment, settings, reason="`rollback` gave it up")


def end_start(cluster: Cluster, deployment: str, settings: Settings, *, reason: str) -> Recovery:
    """Finish or revert everywhere; what is still starting is given up, `reason` says why."""
    done = recover_all(cluster, deployment, settings)
    if done.action != "waiting":
        return done
    done = abandon(
        cluster.here.docker, deployment, crashes_dir=crashes_dir(settings), reason=reason
    )
    console.info(done.text)
    return _follow_head(cluster, deployment, settings, done)


def recover_all(cluster: Cluster, deployment: str, settings: Settings) -> Recovery:
    """Finish or revert, on every node, what an interrupted command left: as the head goes.

    Returns what became of the head, or of another node when there was nothing to do at the head.
    A node that does not answer is said, and keeps its note.
    """
    done = recover(cluster.here.docker, deployment, settings)
    if done.action == "waiting":
        return done
    return _follow_head(cluster, deployment, settings, done)


def _follow_head(cluster: Cluster, deployment: str, settings: Settings, done: Recovery) -> Recovery:
    """Settle the other nodes by what the head has now, and note who still has something."""
    here = cluster.here
    head = here.docker.find_container(container_name(deployment))
    others = [n for n in nodes_of(here.docker, deployment, settings) if n != here.name]
    noted = list(nodes_on(head))
    for node in others:
        if _is_left_out(cluster, node):
            noted.append(node)
            continue
        try:
            settled = _settle(cluster, node, deployment, settings)
        except NodeError as error:
            noted.append(node)
            console.warn(
                f"{error.message}; what was left half done there remains: run "
                f"`sparkdeploy rollback {deployment}` again when {node} is back"
            )
            continue
        noted += settled.noted
        if settled.done.text:
            console.warn(f"{node}: {settled.done.text}")
        if done.action == "nothing":
            done = settled.done
    ClusterRecord.below(settings.state_dir).note(deployment, tuple(dict.fromkeys(noted)))
    return done


@dataclass(frozen=True, slots=True)
class _Settled:
    """What became of one other node."""

    done: Recovery
    noted: tuple[str, ...]
    """The node itself when it still has a container of this head."""


def _settle(cluster: Cluster, node: str, deployment: str, settings: Settings) -> _Settled:
    here, machine = cluster.here, cluster.machine(node)
    head = here.docker.find_container(container_name(deployment))
    with named(machine):
        done = follow(
            machine.docker,
            deployment,
            head=here.name,
            launch=head.labels.get(labels.LAUNCH, "") if head is not None else "",
            crashes_dir=crashes_dir(settings),
        )
        left = machine.docker.find_container(container_name(deployment))
    return _Settled(done, (node,) if nodes_on(left)[:1] == (here.name,) else ())


def _is_left_out(cluster: Cluster, node: str) -> bool:
    """Say whether nobody tried to reach it, although it could be: fewer nodes were enough."""
    tried = {*cluster.unreachable, *(machine.name for machine in cluster.machines)}
    return node not in tried and node in {item.name for item in cluster.config.nodes}
