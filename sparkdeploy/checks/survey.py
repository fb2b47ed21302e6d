"""Survey all nodes, compare their facts, and test the connections between them."""

import ipaddress
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparkdeploy.checks.report import Finding, Verdict, node_finding
from sparkdeploy.errors import NodeError
from sparkdeploy.node import fabric as node_fabric
from sparkdeploy.node.cluster import ClusterNode
from sparkdeploy.node.fabric import (
    FALLBACK_GID_INDEX,
    Connection,
    FabricFact,
    Packet,
    Rate,
    look_at_fabric,
    twin_key,
)
from sparkdeploy.node.facts import Machine, NodeFact, look_at
from sparkdeploy.node.node import Node, Nodes, at_once, named
from sparkdeploy.node.reports import EngineInfo, client_proxy, other_context
from sparkdeploy.units import format_gib

ANY_PORT = 0
"""Tests whether a firewall lets the fabric through at all."""
CLOCK_TOLERANCE_S = 5.0
LEAST_SHARE = 0.1
"""Of a link's speed, by one TCP connection: ports of 200 Gb/s that carried 13 were at fault."""
TOOLS = {"rsync": "rsync", "ping": "iputils-ping", "sha256sum": "coreutils"}


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
    """Read the facts of all nodes in parallel; of several nodes one without Docker has failed."""
    is_alone = nodes.config is None

    def survey_node(node: Node) -> NodeFact | NodeError:
        docker: EngineInfo | None = None
        try:
            with named(node):
                try:
                    docker = node.docker.info()
                except NodeError:
                    if not is_alone:
                        raise
                own = machine if node.is_here and machine is not None else node
                if docker is not None and node.is_here:
                    other, proxy = other_context(docker.address), client_proxy()
                    docker = replace(docker, other_context=other, client_proxy=proxy)
                fabric = None if is_alone else look_at_fabric(node)
                return look_at(own, node.name, docker, models, fabric)
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


def compare(nodes: Nodes, found: Survey) -> tuple[Finding, ...]:
    if nodes.config is None:
        return ()
    wanted = {*found.seen, *found.failures}
    entries = [entry for entry in nodes.config.nodes if entry.name in wanted]
    versions = {
        name: fact.docker.version for name, fact in found.seen.items() if fact.docker is not None
    }
    return (
        *unreachable_checks(found.failures),
        *version_checks(versions),
        *node_checks(entries, found.seen),
        *pair_checks(entries, found.seen),
    )


def probe(nodes: Nodes, found: Survey) -> tuple[Finding, ...]:
    """Send full-size packets both ways between each pair of ports, and open connections."""
    ready = [node for node in nodes if node.name in found.seen]
    if nodes.config is None or len(ready) < 2:
        return ()
    packets = at_once(lambda way: node_fabric.send_full_size(*way), list(_ways(ready, found)))
    opened = connections(nodes, [node for node in ready if not node.is_here])
    return (*packet_checks(packets), *connection_checks(opened))


def measure(nodes: Nodes, found: Survey) -> tuple[Finding, ...]:
    ready = [node for node in nodes if node.name in found.seen]
    after = {node.name: ready[(at + 1) % len(ready)].name for at, node in enumerate(ready)}
    rates = []
    for source, target, port, _ in _ways(ready, found) if nodes.config is not None else ():
        if after[source.name] == target.name:
            name, fact = source.entry.fabric[port].interface, found.seen[source.name].fabric
            interface = fact.interface(name) if fact is not None else None
            speed = interface.speed_mbit_s if interface is not None else None
            rates.append(node_fabric.measure_rate(source, target, port, speed))
    return tuple(rate_checks(rates))


def rate_checks(rates: Iterable[Rate]) -> Iterator[Finding]:
    """Yield how fast each link was: one that is up may carry a small part of what it could."""
    for it in rates:
        seen = f"rate to {it.target} over {it.interface}: "
        if not it.bytes_s:
            seen += f"not measured: {it.failure or 'nothing arrived'}"
            yield node_finding("rate", it.source, Verdict.NOT_SEEN, seen)
            continue
        gbit_s, least = it.bytes_s * 8 / 1e9, (it.speed_mbit_s or 0) / 1000 * LEAST_SHARE
        fix = "on both nodes: is the cable one for that speed, and are all PCIe lanes up (sudo "
        fix += "lspci -vv | grep LnkSta:)? switch both off and unplug them for a minute"
        expected = f"{least:g} Gb/s and more by one connection"
        is_fast = gbit_s >= least or Verdict.WARN
        yield node_finding("rate", it.source, is_fast, f"{seen}{gbit_s:.1f} Gb/s", expected, fix)


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


def unreachable_checks(unreachable: Mapping[str, NodeError]) -> Iterator[Finding]:
    for node, error in unreachable.items():
        seen = f"reachable: {error.message.removeprefix(f'{node}: ')}"
        yield node_finding("reachable", node, False, seen, "ssh and docker answer", error.hint)


def version_checks(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yield each node's Docker version; another major one is worth a warning."""
    first = next(iter(versions.values()), "")
    for node, version in versions.items():
        verdict = version.split(".")[0] == first.split(".")[0] or Verdict.WARN
        yield node_finding("docker", node, verdict, f"docker: {version}", f"like {first}")


def packet_checks(packets: Sequence[Packet]) -> Iterator[Finding]:
    """Yield whether full-size packets arrive: small ones may pass where those of a model hang."""
    for it in packets:
        seen, expected = f"path MTU to {it.target} over {it.interface}: ", f"{it.mtu} bytes to pass"
        if it.arrived is None:
            seen += f"{it.mtu} bytes could not be sent: {it.failure or 'ping does not run'}"
            fix = f"on {it.source}: sudo apt-get install --reinstall {TOOLS['ping']}"
            yield node_finding("path_mtu", it.source, Verdict.NOT_SEEN, seen, fix=fix)
            continue
        seen += f"{it.mtu} bytes {'pass' if it.arrived else 'do not pass'}"
        fix = f"on both nodes: sudo ip link set {it.interface} mtu {it.mtu}; a switch "
        fix += "between them must allow jumbo frames"
        yield node_finding("path_mtu", it.source, it.arrived, seen, expected, fix)


def connection_checks(connections: Sequence[Connection]) -> Iterator[Finding]:
    for it in connections:
        port, answer = it.port or "any free port", it.error or "connects"
        seen = f"TCP to {it.target} at {it.address}, {port}: {answer}"
        subnet = ipaddress.ip_network(f"{it.address}/24", strict=False)
        fix = f"on {it.target}, let the fabric through its firewall: sudo ufw allow from {subnet}"
        yield node_finding("connection", it.source, not it.error, seen, "a connection", fix)


def node_checks(entries: Sequence[ClusterNode], seen: Mapping[str, NodeFact]) -> Iterator[Finding]:
    """Yield what each node's own facts say of its place in config.yaml."""
    for node in entries:
        fact = seen.get(node.name)
        if fact is not None and fact.fabric is not None:
            for check in NODE_CHECKS:
                yield from check(node, fact.fabric)
            free = format_gib(fact.memory_available_bytes or 0)
            yield node_finding("memory", node.name, True, f"free memory: {free}")


def _clock(node: ClusterNode, facts: FabricFact) -> Iterator[Finding]:
    skew_s, limit_s = facts.clock_skew_s, CLOCK_TOLERANCE_S
    seen, fix = f"clock: {skew_s:+.1f} s from this machine's", "on both nodes: sudo timedatectl "
    is_good, expected = abs(skew_s) <= limit_s, f"within {limit_s:g} s"
    yield node_finding("clock", node.name, is_good, seen, expected, f"{fix}set-ntp true")


def _tools(node: ClusterNode, facts: FabricFact) -> Iterator[Finding]:
    for tool, package in TOOLS.items():
        if tool not in facts.tools:
            seen, fix = f"{tool}: not installed", f"on {node.name}: sudo apt-get install {package}"
            yield node_finding("tools", node.name, False, seen, "installed", fix)


def _interfaces(node: ClusterNode, facts: FabricFact) -> Iterator[Finding]:
    for port in node.fabric:
        found, name = facts.interface(port.interface), port.interface
        if found is None:
            expected = "one of: " + ", ".join(item.name for item in facts.interfaces)
            fix = "correct `fabric:` in config.yaml; `sparkdeploy cluster discover` shows them"
            seen = f"{name}: no such interface"
            yield node_finding("link", node.name, False, seen, expected, fix)
            continue
        seen = f"{name} link: {'up' if found.is_up else 'down'}"
        fix = f"is the cable in the same port of both nodes? on {node.name}: "
        fix += f"sudo ip link set {name} up"
        yield node_finding("link", node.name, found.is_up, seen, "up", fix)
        seen = f"{name} address: {', '.join(found.addresses) or 'none'}"
        fix = f"on {node.name}: sudo ip address add {port.address} dev {name} "
        fix += "(for good: netplan, docs/cluster.md)"
        is_good = port.address in found.addresses
        yield node_finding("address", node.name, is_good, seen, port.address, fix)


def _subnets(node: ClusterNode, facts: FabricFact) -> Iterator[Finding]:
    """Two interfaces in one subnet: packets leave by one and are answered to the other."""
    used: dict[str, str] = {}
    for port in node.fabric:
        found = facts.interface(port.interface)
        for subnet in found.networks if found else (port.subnet,):
            other = used.setdefault(subnet, port.interface)
            if other != port.interface:
                seen = f"subnets: {other} and {port.interface} are both in {subnet}"
                fix = f"give {port.interface} an address in another subnet on every node "
                fix += "(netplan, docs/cluster.md)"
                expected = "a subnet of its own for each"
                yield node_finding("subnets", node.name, False, seen, expected, fix)


def _rdma(node: ClusterNode, facts: FabricFact) -> Iterator[Finding]:
    for port in node.fabric:
        if port.rdma is None:
            continue
        found, fix = facts.rdma_device(port.rdma), "correct `rdma:` in config.yaml"
        if found is None:
            others = ", ".join(item.name for item in facts.rdma) or "none"
            seen, fix = f"not there; there is: {others}", f"{fix}; on the node: rdma link"
            is_good, expected = False, "an RDMA device"
        else:
            seen = f"{'active' if found.is_active else 'not active'} on {found.interface}"
            is_good = found.is_active and found.interface == port.interface
            expected = f"active on {port.interface}"
            fix += ", or see to the cable; on the node: rdma link"
        yield node_finding("rdma", node.name, is_good, f"RDMA {port.rdma}: {seen}", expected, fix)


def _pcie(node: ClusterNode, facts: FabricFact) -> Iterator[Finding]:
    """A port that is up may have few or slow lanes to the processor, until it is powered anew."""
    for port in node.fabric:
        found = facts.rdma_device(port.rdma) if port.rdma else None
        if found is None or found.pcie_gt_s is None or not found.pcie_most_gt_s:
            continue
        seen = f"PCIe of {port.rdma}: {found.pcie_gt_s:g} GT/s"
        is_good = found.pcie_gt_s >= found.pcie_most_gt_s or Verdict.WARN
        fix = f"switch {node.name} off and unplug it for a minute; on the node: sudo lspci -vv | "
        fix += "grep -E 'ConnectX|LnkSta:'"
        expected = f"{found.pcie_most_gt_s:g} GT/s"
        yield node_finding("pcie", node.name, is_good, seen, expected, fix)


def _twins(node: ClusterNode, facts: FabricFact) -> Iterator[Finding]:
    """One twin alone carries half of the port's rate."""
    used = {port.interface for port in node.fabric}
    keys = {twin_key(name) for name in used} - {None}
    for item in facts.interfaces:
        if item.name not in used and twin_key(item.name) in keys and item.is_up:
            seen = f"twins: {item.name} is up and not in config.yaml"
            expected, fix = "both twins of the port", f"add {item.name} to `fabric:` of {node.name}"
            yield node_finding("twins", node.name, Verdict.WARN, seen, expected, fix)


NODE_CHECKS = (_clock, _tools, _interfaces, _subnets, _rdma, _pcie, _twins)


def pair_checks(entries: Sequence[ClusterNode], seen: Mapping[str, NodeFact]) -> Iterator[Finding]:
    nodes = [node for node in entries if node.name in seen]
    for node in nodes[1:]:
        first, ours, theirs = nodes[0], seen[node.name], seen[nodes[0].name]
        if ours.fabric is not None and theirs.fabric is not None:
            yield from _mtu(first, node, ours.fabric, theirs.fabric)
        own, other = (fact.gpu.driver_version if fact.gpu else None for fact in (ours, theirs))
        is_same, expected = own == other or Verdict.WARN, f"{other or 'none'}, as on {first.name}"
        fix = "install the same driver on both"
        is_driver = f"GPU driver: {own or 'none'}"
        yield node_finding("driver", node.name, is_same, is_driver, expected, fix)
    yield from _architectures({node.name: seen[node.name].architecture for node in nodes})


def _mtu(
    first: ClusterNode, node: ClusterNode, ours: FabricFact, theirs: FabricFact
) -> Iterator[Finding]:
    for port, first_port in zip(node.fabric, first.fabric, strict=False):
        name = port.interface
        here, there = ours.interface(name), theirs.interface(first_port.interface)
        if here is not None and there is not None:
            seen, expected = f"{name} MTU: {here.mtu}", f"{there.mtu}, as on {first.name}"
            fix = f"on {node.name}: sudo ip link set {name} mtu {there.mtu}"
            yield node_finding("mtu", node.name, here.mtu == there.mtu, seen, expected, fix)


def _architectures(found: Mapping[str, str]) -> Iterator[Finding]:
    """Yield which nodes' Docker Engines are unlike most: one image serves all nodes."""
    common = max(found.values(), key=list(found.values()).count, default="")
    like = next((node for node, own in found.items() if own == common), "")
    for node, own in found.items():
        if node == like:
            continue
        seen = f"architecture: {own if own == common else f'{own}, and {like} is {common}'}"
        expected = "one kind, for one image serves all nodes"
        fix = f"leave {node} out: take it from `cluster:` in config.yaml, or serve on one node "
        fix += "alone (without --cluster)"
        yield node_finding("architecture", node, own == common, seen, expected, fix)
