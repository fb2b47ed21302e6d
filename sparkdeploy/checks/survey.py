"""Survey all nodes, compare their facts, and test the connections between them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkdeploy.checks import fabric
from sparkdeploy.errors import NodeError
from sparkdeploy.node import fabric as node_fabric
from sparkdeploy.node.fabric import FALLBACK_GID_INDEX, look_at_fabric
from sparkdeploy.node.facts import NodeFact, look_at
from sparkdeploy.node.node import at_once, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.node.cluster import ClusterNode
    from sparkdeploy.node.fabric import Connection
    from sparkdeploy.node.facts import Machine
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.node.reports import EngineInfo

ANY_PORT = 0
"""Tests whether a firewall lets the fabric through at all."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The facts of the nodes by name, and why others did not answer."""

    seen: Mapping[str, NodeFact]
    failures: Mapping[str, NodeError] = field(default_factory=dict)

    def gid_indexes(self, nodes: Nodes) -> dict[str, int]:
        """Return where each node's first RDMA device has RoCE v2 over IPv4."""
        return {
            node.name: _gid_index(node.entry, self.seen[node.name])
            for node in nodes
            if node.config is not None
            and node.name in self.seen
            and any(port.rdma for port in node.config.fabric)
        }


def survey(nodes: Nodes, models: Path, machine: Machine | None = None) -> Survey:
    """Read the facts of all nodes in parallel; `models` is this node's model folder.

    `machine` replaces the one this command runs on. Among several nodes one whose Docker Engine
    does not answer has failed; a single machine is surveyed without it.
    """
    is_alone = nodes.config is None

    def survey_node(node: Node) -> NodeFact | NodeError:
        try:
            with named(node):
                return _node_facts(
                    node, models, machine if node.is_here else None, is_alone=is_alone
                )
        except NodeError as error:
            return error

    answers = dict(zip((node.name for node in nodes), at_once(survey_node, nodes), strict=True))
    return Survey(
        {name: item for name, item in answers.items() if isinstance(item, NodeFact)},
        {
            **nodes.unreachable,
            **{name: item for name, item in answers.items() if isinstance(item, NodeError)},
        },
    )


def _node_facts(node: Node, models: Path, machine: Machine | None, *, is_alone: bool) -> NodeFact:
    docker: EngineInfo | None = None
    try:
        docker = node.docker.info()
    except NodeError:
        if not is_alone:
            raise
    fabric_fact = None if is_alone else look_at_fabric(node)
    return look_at(machine or node, node.name, docker, models, fabric_fact)


def compare(nodes: Nodes, found: Survey) -> tuple[Finding, ...]:
    """Return the checks of the nodes' facts; nothing for one machine alone."""
    if nodes.config is None:
        return ()
    wanted = {*found.seen, *found.failures}
    entries = [entry for entry in nodes.config.nodes if entry.name in wanted]
    versions = {
        name: fact.docker.version for name, fact in found.seen.items() if fact.docker is not None
    }
    return (
        *fabric.unreachable_checks(found.failures),
        *fabric.version_checks(versions),
        *fabric.node_checks(entries, found.seen),
        *fabric.pair_checks(entries, found.seen),
    )


def probe(nodes: Nodes, found: Survey) -> tuple[Finding, ...]:
    """Send full-size packets both ways between each pair of ports, and open connections."""
    ready = [node for node in nodes if node.name in found.seen]
    if nodes.config is None or len(ready) < 2:
        return ()
    packets = at_once(lambda way: node_fabric.send_full_size(*way), list(_ways(ready, found)))
    opened = connections(nodes, [node for node in ready if not node.is_here])
    return (*fabric.packet_checks(packets), *fabric.connection_checks(opened))


def connections(nodes: Nodes, workers: Sequence[Node]) -> list[Connection]:
    """Try every connection that a launch needs in parallel: a timeout costs its time only once."""
    if nodes.config is None:
        return []
    ports = (nodes.config.master_port, nodes.config.ray_port, ANY_PORT)

    def connect(end: int | Node) -> list[Connection]:
        if isinstance(end, int):
            return node_fabric.connect_to_here(nodes.here, workers, end)
        return [node_fabric.connect_to_worker(nodes.here, end)]

    return [item for found in at_once(connect, (*ports, *workers)) for item in found]


def _ways(ready: Sequence[Node], found: Survey) -> Iterator[tuple[Node, Node, int, int]]:
    """Yield source, target, port and MTU; `node_checks` names what is down or has no address."""
    for source, target in itertools.permutations(ready, 2):
        for port in range(min(len(source.entry.fabric), len(target.entry.fabric))):
            mtu = _ready_mtu(source, port, found)
            if mtu is not None and _ready_mtu(target, port, found) is not None:
                yield source, target, port, mtu


def _ready_mtu(node: Node, port: int, found: Survey) -> int | None:
    wanted, fact = node.entry.fabric[port], found.seen[node.name].fabric
    interface = fact.interface(wanted.interface) if fact is not None else None
    if interface is None or not interface.is_up or wanted.address not in interface.addresses:
        return None
    return interface.mtu


def _gid_index(entry: ClusterNode, fact: NodeFact) -> int:
    for port in entry.fabric:
        device = fact.fabric.rdma_device(port.rdma) if port.rdma and fact.fabric else None
        if device is not None and device.gid_index is not None:
            return device.gid_index
    return FALLBACK_GID_INDEX
