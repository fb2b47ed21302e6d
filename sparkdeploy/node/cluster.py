"""The nodes of a cluster as the user writes them down: `cluster:` in config.yaml."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator

from sparkdeploy.errors import RecipeError
from sparkdeploy.node.ssh import SshTarget
from sparkdeploy.recipe.schema import NAME_PATTERN, Port, Strict

if TYPE_CHECKING:
    from collections.abc import Mapping

MASTER_PORT = 29501
RAY_PORT = 6379


def _with_prefix(text: str) -> str:
    if "/" not in text:
        raise ValueError("write the address with its prefix, such as 192.168.177.11/24")
    ipaddress.IPv4Interface(text)
    return text


class FabricPort(Strict):
    """One interface of the fabric; a QSFP port shows itself as two of them, its twins."""

    interface: Annotated[str, Field(pattern=r"^[\w.-]{1,15}$")]
    address: Annotated[str, AfterValidator(_with_prefix)]
    """IPv4 with its prefix length: 192.168.177.11/24."""
    rdma: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """The RDMA device behind it, such as rocep1s0f1; NCCL uses sockets without one."""

    @property
    def ip(self) -> str:
        """The address without its prefix length."""
        return str(ipaddress.IPv4Interface(self.address).ip)

    @property
    def subnet(self) -> str:
        """The subnet: 192.168.177.0/24."""
        return str(ipaddress.IPv4Interface(self.address).network)


class ClusterNode(Strict):
    """One machine: how it is reached, and its place on the fabric."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    ssh: Annotated[str, Field(pattern=r"^[\w.:-]+$")]
    """The address that ssh is given; not used for the machine the command runs on."""
    user: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """Whom ssh logs in as; ssh's own configuration decides when left out."""
    docker_socket: Annotated[str, Field(pattern=r"^/")] = "/var/run/docker.sock"
    fabric: Annotated[tuple[FabricPort, ...], Field(min_length=1, max_length=4, strict=False)]
    """The first one carries the rendezvous and all control traffic."""

    @property
    def ip(self) -> str:
        """The address the other nodes reach it at."""
        return self.fabric[0].ip

    @property
    def target(self) -> SshTarget:
        """How ssh gets there."""
        return SshTarget(self.name, self.ssh, self.user, self.docker_socket)


class ClusterConfig(Strict):
    """All nodes; the file can be the same on each of them."""

    nodes: Annotated[tuple[ClusterNode, ...], Field(min_length=2, strict=False)]
    master_port: Port = MASTER_PORT
    ray_port: Port = RAY_PORT

    @model_validator(mode="after")
    def _distinct(self) -> ClusterConfig:
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
        lines = [
            ".".join(["cluster", *map(str, item["loc"])]) + f": {item['msg']}"
            for item in error.errors(include_url=False)
        ]
        raise RecipeError(
            f"{file}: the cluster is not valid",
            detail="\n".join(lines),
            hint="docs/cluster.md shows the section with every key",
        ) from error
