"""`cluster`: what the nodes say, whether they can serve together, and finding them."""

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.checks.report import Finding, Verdict, node_finding
from sparkdeploy.checks.survey import Survey, compare, measure, probe, survey
from sparkdeploy.deploy.expectation import check_all_reduce, probe_containers
from sparkdeploy.deploy.nodes import needed_nodes
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import NodeError, SparkdeployError, UsageError
from sparkdeploy.folders import schema_line
from sparkdeploy.node.cluster import ClusterConfig, configured, open_nodes
from sparkdeploy.node.fabric import FabricFact, Interface, look_at_fabric, twin_key
from sparkdeploy.node.facts import QUERY_TIMEOUT_S, THIS_MACHINE, NodeFact, output_or_none
from sparkdeploy.node.node import Node, Nodes, at_once
from sparkdeploy.node.ssh import SshLink, SshTarget
from sparkdeploy.plan.make import decide, topology_for
from sparkdeploy.plan.observe import observe
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console

SSH_PORT = 22
KNOCK_TIMEOUT_S = 1.0
GPU_NAMES = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
MAX_ADDRESSES = 1024


def survey_of_all(settings: Settings) -> tuple[ClusterConfig, str, Mapping[str, NodeFact]]:
    """Return the configured nodes, the name of this one, and what those say that answer."""
    config = configured(settings)
    with open_nodes(settings, frozenset(config.names)) as nodes:
        return config, nodes.here.name, survey(nodes, settings.hub_cache).seen


def check_all(request: Request, settings: Settings) -> tuple[Finding, ...]:
    """Ask the nodes, try the ways between them, and look into the engine's containers there.

    Those are of the request's recipe. Raises RecipeError for what was typed and cannot be read; a
    configured default that cannot be is only not looked into.
    """
    if request.recipe != settings.default_recipe or request.assignments:
        resolve(request, settings)
    with (
        open_nodes(settings, frozenset(configured(settings).names)) as nodes,
        console.step("cluster check") as step,
    ):
        step.say("asking every node")
        found = survey(nodes, settings.hub_cache)
        step.say("sending full-size packets and opening connections")
        outside = (*compare(nodes, found), *probe(nodes, found))
        # A link is measured that is sound so far: of another the first fault is enough.
        if not any(check.verdict is Verdict.FAIL for check in outside):
            step.say("measuring each link for half a second")
            outside = (*outside, *measure(nodes, found))
        step.say(f"looking into containers of {request.recipe}")
        return (*outside, *_check_inside(request, settings, nodes, found))


def _check_inside(
    request: Request, settings: Settings, nodes: Nodes, found: Survey
) -> tuple[Finding, ...]:
    """Return what containers of the recipe's engine see, or why nobody could look."""
    try:
        resolved = resolve(request, settings)
        nodes = nodes.only(needed_nodes(resolved, settings))
        nodes.require_all()
        deployment = request.deployment
        seen = observe(resolved, settings, nodes, deployment, found=found, asks_registry=False)
        plan = decide(resolved, settings, seen, deployment, topology_for(resolved, nodes, seen))
        inside = probe_containers(plan, nodes)
    except SparkdeployError as error:
        reason = f"containers of {request.recipe} were not checked: {error.message}"
        here = nodes.here.name
        return (node_finding("engine", here, Verdict.NOT_SEEN, reason, fix=error.hint),)
    if any(check.verdict is Verdict.FAIL for check in inside):
        return inside
    return (*inside, *check_all_reduce(plan, nodes))


@dataclass(frozen=True, slots=True)
class Host:
    address: str
    facts: FabricFact | None
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
        raise UsageError(f"not a subnet: {error}") from error
    if network.num_addresses > MAX_ADDRESSES:
        raise UsageError(f"{subnet} has {network.num_addresses} addresses", hint="/22 at most")
    return [*hosts, *(str(address) for address in network.hosts())]


def discover(addresses: Sequence[str], user: str | None, settings: Settings) -> tuple[Host, ...]:
    """Ask every address that listens for ssh; a host counts when ssh, Docker and GPU answer."""
    here = look_at_fabric(THIS_MACHINE)
    mine = {item.partition("/")[0] for port in here.interfaces for item in port.addresses}

    def ask(address: str) -> Host | None:
        if address in mine:
            return _judge(address, Node(address, docker_host=settings.docker_host), here)
        return _ask(address, user) if _listens(address) else None

    with console.step(f"asking {len(addresses)} addresses"):
        found = at_once(ask, addresses)
    return tuple(item for item in found if item is not None)


def section(found: Iterable[Host], user: str | None) -> str:
    good = [(item.address, item.facts) for item in found if item.facts is not None]
    nodes = [_node(address, facts, user, [other for _, other in good]) for address, facts in good]
    return f"{schema_line('config')}\n{yaml_text.dump({'cluster': {'nodes': nodes}})}"


def fabric_of(facts: FabricFact, others: Sequence[FabricFact]) -> tuple[Interface, ...]:
    """Return the interfaces that are the fabric: cabled twins, else those all nodes share."""
    ready = [item for item in facts.interfaces if item.is_up and item.addresses]
    twins = tuple(item for item in ready if twin_key(item.name) is not None)
    if twins:
        return twins
    shared = [
        {network for port in other.interfaces for network in port.networks}
        for other in others
        if other is not facts
    ]
    return tuple(
        item
        for item in ready
        if shared and all(networks.intersection(item.networks) for networks in shared)
        if item.name != "lo" and not item.name.startswith("docker")
    )


def _ask(address: str, user: str | None) -> Host:
    try:
        with Node(address, link=SshLink(SshTarget(address, address, user))) as node:
            return _judge(address, node, look_at_fabric(node))
    except NodeError as error:
        fix = f" ({error.hint})" if error.hint else ""
        return Host(address, None, f"{str(error).removeprefix(f'{address}: ')}{fix}")


def _judge(address: str, node: Node, fact: FabricFact) -> Host:
    try:
        node.docker.info()
    except NodeError:
        return Host(address, None, "its Docker Engine does not answer")
    if not output_or_none(node, GPU_NAMES, timeout_s=QUERY_TIMEOUT_S):
        return Host(address, None, "nvidia-smi names no GPU")
    return Host(address, fact)


def _listens(address: str) -> bool:
    try:
        socket.create_connection((address, SSH_PORT), KNOCK_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _node(
    address: str, facts: FabricFact, user: str | None, others: Sequence[FabricFact]
) -> dict[str, Any]:
    fabric = []
    for item in fabric_of(facts, others):
        device = next((rdma.name for rdma in facts.rdma if rdma.interface == item.name), None)
        port = {"interface": item.name, "address": item.addresses[0]}
        fabric.append({**port, "rdma": device} if device else port)
    node: dict[str, Any] = {"name": facts.host_name.lower(), "ssh": address}
    return {**node, **({"user": user} if user else {}), "fabric": fabric}
