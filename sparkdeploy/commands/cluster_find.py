"""Find the nodes of a cluster among addresses the user names, and write them down."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy import shell, yaml_text
from sparkdeploy.console import console
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.node.fabric import SCRIPT, FabricFacts, Interface, read_facts, twin_key
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.machines import at_once
from sparkdeploy.node.ssh import SshLink, SshTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sparkdeploy.settings import Settings

SSH_PORT = 22
KNOCK_TIMEOUT_S = 1.0
MAX_ADDRESSES = 1024


@dataclass(frozen=True, slots=True)
class Found:
    """A host that was asked: its facts, or the question it did not answer."""

    address: str
    facts: FabricFacts | None
    refusal: str = ""


def addresses_of(subnet: str | None, hosts: Sequence[str]) -> list[str]:
    """Return what is to be asked; UsageError when that is nothing, or far too much."""
    if subnet is None:
        if not hosts:
            raise UsageError("say where to look: --hosts A,B or --subnet 192.168.177.0/24")
        return list(hosts)
    try:
        network = ipaddress.IPv4Network(subnet, strict=False)
    except ValueError as error:
        raise UsageError(f"{subnet} is no subnet: {error}") from error
    if network.num_addresses > MAX_ADDRESSES:
        raise UsageError(f"{subnet} has {network.num_addresses} addresses", hint="/22 at most")
    return [*hosts, *(str(address) for address in network.hosts())]


def discover(addresses: Sequence[str], user: str | None, settings: Settings) -> tuple[Found, ...]:
    """Ask every address that listens for ssh; a host counts when ssh, Docker and GPU answer.

    The machine the command runs on is asked without ssh.
    """
    here = read_facts(shell.run(("sh", "-c", SCRIPT)).stdout)
    mine = {item.partition("/")[0] for port in here.interfaces for item in port.addresses}

    def ask(address: str) -> Found | None:
        if address in mine:
            return _judge(address, here, settings.docker_host)
        return _ask(address, user) if _listens(address) else None

    with console.step(f"asking {len(addresses)} addresses"):
        found = at_once(ask, addresses)
    return tuple(item for item in found if item is not None)


def section(found: Iterable[Found], user: str | None) -> str:
    """Return the `cluster:` section for config.yaml that holds every host that counts."""
    good = [(item.address, item.facts) for item in found if item.facts is not None]
    nodes = [_node(address, facts, user, [other for _, other in good]) for address, facts in good]
    return yaml_text.dump({"cluster": {"nodes": nodes}})


def fabric_of(facts: FabricFacts, others: Sequence[FabricFacts]) -> tuple[Interface, ...]:
    """Return the interfaces that are the fabric: cabled twins, else those all nodes share."""
    ready = [item for item in facts.interfaces if item.is_up and item.addresses]
    twins = tuple(item for item in ready if twin_key(item.name) is not None)
    if twins:
        return twins
    shared = [_subnets(other) for other in others if other is not facts]
    return tuple(
        item
        for item in ready
        if shared and all(_subnets_of(item) & subnets for subnets in shared)
        if item.name != "lo" and not item.name.startswith("docker")
    )


def _ask(address: str, user: str | None) -> Found:
    try:
        with SshLink(SshTarget(address, address, user)) as link:
            facts = read_facts(link.run(SCRIPT).stdout)
            return _judge(address, facts, link.docker_address)
    except (NodeError, ValueError) as error:
        fix = f" ({error.hint})" if isinstance(error, NodeError) and error.hint else ""
        return Found(address, None, f"{str(error).removeprefix(f'{address}: ')}{fix}")


def _judge(address: str, facts: FabricFacts, docker_host: str | None) -> Found:
    try:
        DockerHost(docker_host).__exit__()
    except NodeError:
        return Found(address, None, "its Docker Engine does not answer")
    if facts.gpu is None:
        return Found(address, None, "nvidia-smi names no GPU")
    return Found(address, facts)


def _listens(address: str) -> bool:
    try:
        socket.create_connection((address, SSH_PORT), KNOCK_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _node(
    address: str, facts: FabricFacts, user: str | None, others: Sequence[FabricFacts]
) -> dict[str, Any]:
    fabric = []
    for item in fabric_of(facts, others):
        device = next((rdma.name for rdma in facts.rdma if rdma.interface == item.name), None)
        port = {"interface": item.name, "address": item.addresses[0]}
        fabric.append({**port, "rdma": device} if device else port)
    node: dict[str, Any] = {"name": facts.host_name.lower(), "ssh": address}
    return {**node, **({"user": user} if user else {}), "fabric": fabric}


def _subnets(facts: FabricFacts) -> set[str]:
    return set().union(*(_subnets_of(item) for item in facts.interfaces))


def _subnets_of(item: Interface) -> set[str]:
    return {str(ipaddress.IPv4Interface(address).network) for address in item.addresses}
