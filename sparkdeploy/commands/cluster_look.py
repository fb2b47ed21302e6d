"""Ask every node of the cluster, and hold the answers against each other."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.checks import fabric as cluster_checks
from sparkdeploy.console import console
from sparkdeploy.errors import NodeError
from sparkdeploy.node import probes
from sparkdeploy.node.cluster import ClusterConfig, ClusterNode, read_cluster
from sparkdeploy.node.fabric import FALLBACK_GID_INDEX, SCRIPT, FabricFacts, read_facts
from sparkdeploy.node.machines import Cluster, at_once, named, open_cluster
from sparkdeploy.node.reports import EngineInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sparkdeploy.checks.fabric import Check
    from sparkdeploy.node.machines import ClusterMachine
    from sparkdeploy.node.probes import Connection, Packet, Seen
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Survey:
    """What was seen of all nodes, and the verdicts."""

    seen: Mapping[str, Seen]
    checks: tuple[Check, ...]
    engines: Mapping[str, EngineInfo] = field(default_factory=dict)
    """What each node's Docker Engine says of itself."""

    def gid_indexes(self, config: ClusterConfig) -> dict[str, int]:
        """Return where each node's first RDMA device has RoCE v2 over IPv4."""
        return {
            node.name: _gid_index(node, self.seen[node.name].facts)
            for node in config.nodes
            if node.name in self.seen and any(port.rdma for port in node.fabric)
        }

    @property
    def failed(self) -> tuple[Check, ...]:
        """Return what stands in the way."""
        return tuple(check for check in self.checks if check.verdict == "failed")


def configured(settings: Settings) -> ClusterConfig:
    """Return the nodes of config.yaml; RecipeError when there are none, or a mistake."""
    return read_cluster(settings.cluster, str(settings.config_dir / "config.yaml"))


@contextlib.contextmanager
def connected(settings: Settings, needed: frozenset[str] | None = None) -> Iterator[Cluster]:
    """Connect to the configured nodes, or to those of them that are needed, all at once."""
    config = configured(settings)
    here = name_here(config)
    wanted = [node for node in config.nodes if needed is None or node.name in needed]
    with open_cluster(config, wanted, here, settings.docker_host) as cluster:
        yield cluster


def name_here(config: ClusterConfig) -> str:
    """Return the node this command runs on; NodeError when it is none of them.

    A node is known by any of its fabric addresses, or by its interface's name and its host name
    where an address is missing.
    """
    facts = read_facts(shell.run(("sh", "-c", SCRIPT)).stdout)
    mine = {address.partition("/")[0] for item in facts.interfaces for address in item.addresses}
    for node in config.nodes:
        if mine & {node.ssh, *(port.ip for port in node.fabric)}:
            return node.name
    for node in config.nodes:
        if facts.host_name == node.name:
            return node.name
    names = ", ".join(node.name for node in config.nodes)
    raise NodeError(
        f"this machine has none of the addresses of {names}",
        hint="run it on one of the nodes (that one becomes the head), or correct config.yaml",
    )


def survey(cluster: Cluster) -> Survey:
    """Look at every node that answers, and probe the ways between them."""
    with console.step("cluster check") as step:
        step.say("asking every node")
        engines, broken = _engines(cluster)
        seen = dict(_look(cluster))
        step.say("sending full-size packets and opening connections")
        machines = [machine for machine in cluster.machines if machine.name in seen]
        packets = _packets(machines, seen)
        opened = connections(cluster, machines)
    config = cluster.config
    checks = (
        *cluster_checks.unreachable_checks({**cluster.unreachable, **broken}),
        *cluster_checks.version_checks({name: item.version for name, item in engines.items()}),
        *cluster_checks.node_checks(config, seen),
        *cluster_checks.pair_checks(config, seen),
        *cluster_checks.packet_checks(packets),
        *cluster_checks.connection_checks(opened),
    )
    return Survey(seen, checks, engines)


def require_sound(checks: Sequence[Check]) -> None:
    """Raise NodeError with every failed check and its fix; warnings are said."""
    for check in checks:
        if check.verdict == "warning":
            console.warn(check.describe())
    failed = [check for check in checks if check.verdict == "failed"]
    if not failed:
        return
    first = failed[0]
    if len(failed) == 1:
        raise NodeError(first.describe(), hint=first.fix)
    lines = [line for check in failed for line in (check.describe(), f"    fix: {check.fix}")]
    raise NodeError(
        f"{len(failed)} checks of the cluster failed, the first: {first.describe()}",
        detail="\n".join(lines),
    )


def _gid_index(node: ClusterNode, facts: FabricFacts) -> int:
    devices = [facts.rdma_device(port.rdma) for port in node.fabric if port.rdma]
    known = [device.gid_index for device in devices if device and device.gid_index is not None]
    return known[0] if known else FALLBACK_GID_INDEX


def _look(cluster: Cluster) -> Iterator[tuple[str, Seen]]:
    def look(machine: ClusterMachine) -> tuple[str, Seen]:
        with named(machine):
            return machine.name, probes.look(machine)

    yield from at_once(look, cluster.machines)


def _engines(cluster: Cluster) -> tuple[dict[str, EngineInfo], dict[str, NodeError]]:
    def ask(machine: ClusterMachine) -> EngineInfo | NodeError:
        try:
            with named(machine):
                return machine.docker.info()
        except NodeError as error:
            return error

    answers = dict(
        zip(
            (machine.name for machine in cluster.machines),
            at_once(ask, cluster.machines),
            strict=True,
        )
    )
    return (
        {name: item for name, item in answers.items() if isinstance(item, EngineInfo)},
        {name: item for name, item in answers.items() if isinstance(item, NodeError)},
    )


def _packets(machines: Sequence[ClusterMachine], seen: Mapping[str, Seen]) -> list[Packet]:
    """Send both ways over each pair of ports; what is down or has no address is said elsewhere."""
    ways = [
        (source, target, port)
        for source, target in itertools.permutations(machines, 2)
        for port in range(min(len(source.node.fabric), len(target.node.fabric)))
        if _is_ready(source, port, seen) and _is_ready(target, port, seen)
    ]

    def send(way: tuple[ClusterMachine, ClusterMachine, int]) -> Packet:
        source, target, port = way
        interface = seen[source.name].facts.interface(source.node.fabric[port].interface)
        return probes.send_full_size(source, target, port, interface.mtu if interface else 1500)

    return at_once(send, ways)


def _is_ready(machine: ClusterMachine, port: int, seen: Mapping[str, Seen]) -> bool:
    wanted = machine.node.fabric[port]
    found = seen[machine.name].facts.interface(wanted.interface)
    return found is not None and found.is_up and wanted.address in found.addresses


def connections(cluster: Cluster, machines: Sequence[ClusterMachine]) -> list[Connection]:
    """Try every connection that a launch needs, all at once: silence costs its time only once."""
    here = next((machine for machine in machines if machine.is_here), None)
    if here is None:
        return []
    ways: list[Callable[[], Connection]] = []
    for worker in machines:
        if not worker.is_here:
            ports = (cluster.config.master_port, cluster.config.ray_port, 0)
            ways += [partial(probes.connect_to_here, here, worker, port) for port in ports]
            ways.append(partial(probes.connect_to_worker, here, worker))
    return at_once(lambda connect: connect(), ways)
