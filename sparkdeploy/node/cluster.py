"""The nodes of a cluster as the user writes them down: `cluster:` in config.yaml."""

import contextlib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator

from sparkdeploy import shell
from sparkdeploy.about import about
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.node.container import is_name
from sparkdeploy.node.fabric import SCRIPT, parse_fabric
from sparkdeploy.node.node import Node, Nodes, at_once
from sparkdeploy.node.ssh import SshLink, SshTarget
from sparkdeploy.recipe.fields import Port, Strict
from sparkdeploy.settings import Settings, mistakes

MASTER_PORT = 29501
RAY_PORT = 6379


def _with_prefix(text: str) -> str:
    if ":" in text:
        raise ValueError(f"{text} is IPv6; vLLM's ranks meet over IPv4: 192.168.177.11/24")
    if "/" not in text:
        raise ValueError("write the address with its prefix, such as 192.168.177.11/24")
    ipaddress.IPv4Interface(text)
    return text


def _is_node_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"{text!r} is no name for a node: use lower-case letters, digits, . _ -")
    return text


def _is_destination(text: str) -> str:
    host, _, port = text.rpartition(":")
    if host and ":" not in host and port.isdecimal():
        raise ValueError(
            f"{text}: write the port into ~/.ssh/config (`Host {host}`, `Port {port}`), and "
            f"`ssh: {host}` here"
        )
    if not re.fullmatch(r"[\w.:%-]+", text) or text.startswith("-"):
        raise ValueError(f"{text!r} is no host: a name, an address, or a Host of ~/.ssh/config")
    return text


class FabricPort(Strict):
    """One interface of the fabric; a QSFP port shows itself as two of them, its twins."""

    interface: Annotated[
        str, Field(pattern=r"^[\w.-]{1,15}$"), about("As `ip link` calls it.", "enp1s0f1np1")
    ]
    address: Annotated[
        str,
        AfterValidator(_with_prefix),
        about("IPv4 with its prefix length.", "192.168.177.11/24"),
    ]
    rdma: Annotated[
        Annotated[str, Field(pattern=r"^[\w.-]+$")] | None,
        about("The RDMA device behind it.", "rocep1s0f1", unset="NCCL uses sockets"),
    ] = None

    @property
    def ip(self) -> str:
        return str(ipaddress.IPv4Interface(self.address).ip)

    @property
    def subnet(self) -> str:
        return str(ipaddress.IPv4Interface(self.address).network)


class ClusterNode(Strict):
    """One machine: how it is reached, and its place on the fabric."""

    name: Annotated[str, AfterValidator(_is_node_name), about("What commands call it.", "spark-1")]
    ssh: Annotated[
        str,
        AfterValidator(_is_destination),
        about(
            "What ssh is given: an address or a Host of ~/.ssh/config; not used for this machine.",
            "192.168.177.11",
        ),
    ]
    user: Annotated[
        Annotated[str, Field(pattern=r"^[\w.-]+$")] | None,
        about("Whom ssh logs in as.", "ada", unset="ssh's own configuration decides"),
    ] = None
    docker_socket: Annotated[
        str, Field(pattern=r"^/"), about("Of its Docker Engine.", "/run/user/1000/docker.sock")
    ] = "/var/run/docker.sock"
    fabric: Annotated[tuple[FabricPort, ...], Field(min_length=1, max_length=4, strict=False)]
    """The first one carries the rendezvous and all control traffic."""

    @property
    def ip(self) -> str:
        return self.fabric[0].ip

    @property
    def target(self) -> SshTarget:
        return SshTarget(self.name, self.ssh, self.user, self.docker_socket)


class ClusterConfig(Strict):
    """All nodes; the file can be the same on each of them."""

    nodes: Annotated[tuple[ClusterNode, ...], Field(min_length=2, strict=False)]
    master_port: Annotated[
        Port, about("Where ranks meet.", 29501, unit="port", flag="--master-port")
    ] = MASTER_PORT
    ray_port: Annotated[Port, about("Where Ray's nodes meet.", 6379, unit="port")] = RAY_PORT

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @model_validator(mode="after")
    def _distinct(self) -> "ClusterConfig":
        for what, values in (
            ("name", [node.name for node in self.nodes]),
            ("fabric address", [port.ip for node in self.nodes for port in node.fabric]),
        ):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"the {what} {twice[0]} is given twice")
        return self


def read_cluster(section: Mapping[str, Any] | None, file: str) -> ClusterConfig:
    """Return the nodes of config.yaml; RecipeError names every mistake, or that there are none."""
    if section is None:
        raise RecipeError(
            f"{file} names no nodes",
            hint="`sparkdeploy cluster discover --hosts A,B` prints the section to put there",
        )
    try:
        return ClusterConfig.model_validate(section)
    except ValidationError as error:
        raise RecipeError(
            f"{file}: the cluster is not valid",
            detail=mistakes(error, Path(file), "cluster"),
            hint="docs/cluster.md shows the section with every key",
        ) from error


def configured(settings: Settings) -> ClusterConfig:
    return read_cluster(settings.cluster, str(settings.config_dir / "config.yaml"))


def name_here(config: ClusterConfig) -> str:
    """Return the node this command runs on; NodeError when it is none of them."""
    fact = parse_fabric("this machine", shell.run(("sh", "-c", SCRIPT)))
    mine = {address.partition("/")[0] for item in fact.interfaces for address in item.addresses}
    for node in config.nodes:
        if mine & {node.ssh, *(port.ip for port in node.fabric)}:
            return node.name
    # Where the addresses are missing.
    if fact.host_name in config.names:
        return fact.host_name
    raise NodeError(
        f"this machine has none of the addresses of {', '.join(config.names)}",
        hint="run it on one of the nodes (that one becomes the head), or name one: --on NODE",
    )


@contextlib.contextmanager
def this_node(settings: Settings) -> Iterator[Nodes]:
    with Node(settings.node_name, docker_host=settings.docker_host) as node:
        yield Nodes(node)


@contextlib.contextmanager
def open_nodes(
    settings: Settings, names: frozenset[str], this: Node | None = None
) -> Iterator[Nodes]:
    """Connect to this machine and to the named nodes at once, noting who does not answer."""
    config = configured(settings)
    here = name_here(config)

    def connect(entry: ClusterNode) -> Node | NodeError:
        try:
            return Node(entry.name, entry, SshLink(entry.target))
        except NodeError as error:
            return error

    wanted = [entry for entry in config.nodes if entry.name in names and entry.name != here]
    with contextlib.ExitStack() as opened:
        own = next(entry for entry in config.nodes if entry.name == here)
        local = opened.enter_context(Node(here, own, docker_host=settings.docker_host))
        if this is not None:
            this.share_with(local)
        answers = dict(zip((entry.name for entry in wanted), at_once(connect, wanted), strict=True))
        others = [opened.enter_context(it) for it in answers.values() if isinstance(it, Node)]
        failed = {name: it for name, it in answers.items() if isinstance(it, NodeError)}
        yield Nodes(local, tuple(others), failed, config)
