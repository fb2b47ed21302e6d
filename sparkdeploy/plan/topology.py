"""Who does what in a deployment: one machine, or several that serve one model together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from sparkdeploy.errors import NodeError
from sparkdeploy.node.cluster import MASTER_PORT, RAY_PORT
from sparkdeploy.recipe.cluster_sizes import nodes_needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.node.cluster import ClusterConfig
    from sparkdeploy.recipe.load import Resolved

Backend = Literal["native", "ray"]


@dataclass(frozen=True, slots=True)
class NodeRank:
    """One node's rank in a deployment, and the addresses and devices by which others reach it."""

    node: str
    number: int = 0
    address: str = "127.0.0.1"
    interface: str = ""
    rdma: tuple[str, ...] = ()
    """All RDMA devices, twins included: NCCL reaches the port's full rate only over both."""
    gid_index: int | None = None

    @property
    def is_head(self) -> bool:
        return self.number == 0


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes of one deployment, the head first, and how the model is divided among them."""

    ranks: tuple[NodeRank, ...]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    backend: Backend = "native"
    master_port: int = MASTER_PORT
    ray_port: int = RAY_PORT
    left_alone: tuple[str, ...] = ()
    """Nodes that are configured and not needed."""

    @property
    def is_alone(self) -> bool:
        return len(self.ranks) == 1

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def head(self) -> NodeRank:
        return self.ranks[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(rank.node for rank in self.ranks)

    @property
    def start_order(self) -> tuple[NodeRank, ...]:
        """Workers first; a Ray worker, though, has to find its head."""
        head, *workers = self.ranks
        return (head, *workers) if self.backend == "ray" else (*workers, head)


def alone(node: str) -> Topology:
    return Topology((NodeRank(node),))


def for_cluster(resolved: Resolved) -> Resolved:
    """Return the recipe with what its `cluster` section changes for several nodes."""
    override = resolved.recipe.cluster.speculative
    if override is None:
        return resolved
    speculative = None if override == "off" else override
    serve = resolved.recipe.serve.model_copy(update={"speculative": speculative})
    return replace(resolved, recipe=resolved.recipe.model_copy(update={"serve": serve}))


def make_topology(
    resolved: Resolved,
    config: ClusterConfig,
    head: str,
    gid_indexes: Mapping[str, int] | None = None,
    *,
    gpus_per_node: int = 1,
) -> Topology:
    """Give each node that is needed a rank: `head` 0, the others in the order of the file.

    `gid_indexes` has the RoCEv2 index by node. Raises NodeError when there are too few nodes, and
    RecipeError when the recipe's parallel sizes do not fit the nodes.
    """
    cluster = resolved.recipe.cluster
    nodes = sorted(config.nodes, key=lambda node: node.name != head)
    wanted = nodes_needed(cluster, gpus_per_node)
    if len(nodes) < wanted:
        raise NodeError(
            f"{resolved.recipe.name} spreads over {wanted} nodes, and {len(nodes)} are configured",
            hint=f"--set cluster.tensor_parallel={len(nodes)}, or add nodes to config.yaml",
        )
    gid_indexes = gid_indexes or {}
    ranks = tuple(
        NodeRank(
            node=node.name,
            number=number,
            address=node.ip,
            interface=node.fabric[0].interface,
            rdma=tuple(port.rdma for port in node.fabric if port.rdma is not None),
            gid_index=gid_indexes.get(node.name),
        )
        for number, node in enumerate(nodes[:wanted])
    )
    return Topology(
        ranks=ranks,
        tensor_parallel=cluster.tensor_parallel,
        pipeline_parallel=cluster.pipeline_parallel,
        data_parallel=cluster.data_parallel,
        backend=cluster.backend,
        master_port=config.master_port,
        ray_port=config.ray_port,
        left_alone=tuple(node.name for node in nodes[wanted:]),
    )
