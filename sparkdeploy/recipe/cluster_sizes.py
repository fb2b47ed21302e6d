"""How many GPUs and nodes the sizes of a cluster take, and which cannot be."""

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.schema import Cluster


def nodes_needed(cluster: Cluster, gpus_per_node: int) -> int:
    """Return how many nodes the sizes take; RecipeError where such nodes cannot serve them."""
    copy = cluster.tensor_parallel * cluster.pipeline_parallel
    world = copy * cluster.data_parallel
    if cluster.data_parallel > 1 and copy > gpus_per_node:
        raise RecipeError(
            f"cluster.data_parallel is {cluster.data_parallel}, and one copy of the model takes "
            f"{copy} GPUs: more than the {gpus_per_node} of a node",
            hint="set cluster.data_parallel to 1: copies that span nodes are not supported",
        )
    nodes = -(-world // gpus_per_node)
    is_even = world % gpus_per_node == 0 and (copy >= gpus_per_node or gpus_per_node % copy == 0)
    if nodes > 1 and not is_even:
        raise RecipeError(
            f"{world} GPUs ({_sizes(cluster)}) do not fill nodes of {gpus_per_node} GPUs evenly",
            hint=f"choose sizes whose product is a multiple of {gpus_per_node}",
        )
    if cluster.min_nodes is not None and nodes < cluster.min_nodes:
        raise RecipeError(
            f"the recipe needs at least {_nodes(cluster.min_nodes)} (cluster.min_nodes), and "
            f"{_nodes(nodes)} would serve it",
            hint="serve it with --cluster, and raise cluster.tensor_parallel where that gives "
            "fewer nodes",
        )
    if cluster.max_nodes is not None and nodes > cluster.max_nodes:
        raise RecipeError(
            f"the recipe takes at most {_nodes(cluster.max_nodes)} (cluster.max_nodes), and "
            f"{_sizes(cluster)} takes {_nodes(nodes)}",
            hint="lower cluster.tensor_parallel, pipeline_parallel or data_parallel",
        )
    return nodes


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _sizes(cluster: Cluster) -> str:
    return (
        f"tensor {cluster.tensor_parallel} x pipeline {cluster.pipeline_parallel} x "
        f"data {cluster.data_parallel}"
    )
