"""The parallel sizes of a recipe: how many nodes they take, and that nothing else sets them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.cluster_sizes import nodes_needed
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.schema import Cluster

SIZES = st.integers(1, 8)
CLUSTERS = st.builds(Cluster, tensor_parallel=SIZES, pipeline_parallel=SIZES, data_parallel=SIZES)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "data", "gpus_per_node", "nodes"),
    [
        (1, 1, 1, 1, 1),
        (2, 1, 1, 1, 2),
        (1, 3, 1, 1, 3),
        (1, 1, 4, 1, 4),
        (2, 2, 1, 1, 4),
        (2, 1, 1, 4, 1),
        (3, 1, 1, 4, 1),
        (4, 2, 1, 4, 2),
        (2, 1, 4, 4, 2),
    ],
)
def test_the_sizes_say_how_many_nodes(
    tensor: int, pipeline: int, data: int, gpus_per_node: int, nodes: int
) -> None:
    cluster = Cluster(tensor_parallel=tensor, pipeline_parallel=pipeline, data_parallel=data)
    assert nodes_needed(cluster, gpus_per_node) == nodes


@pytest.mark.parametrize(
    ("cluster", "gpus_per_node", "words"),
    [
        (Cluster(tensor_parallel=3), 2, "do not fill nodes of 2 GPUs evenly"),
        (Cluster(tensor_parallel=3, data_parallel=4), 4, "do not fill nodes of 4 GPUs evenly"),
        (Cluster(tensor_parallel=2, data_parallel=2), 1, "one copy of the model takes 2 GPUs"),
        (
            Cluster(tensor_parallel=1, min_nodes=2),
            1,
            "needs at least 2 nodes (cluster.min_nodes), and 1 node",
        ),
        (
            Cluster(tensor_parallel=4, max_nodes=2),
            1,
            "takes at most 2 nodes (cluster.max_nodes), and tensor 4",
        ),
    ],
)
def test_sizes_that_no_nodes_can_serve_are_refused(
    cluster: Cluster, gpus_per_node: int, words: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        nodes_needed(cluster, gpus_per_node)
    assert words in refused.value.message
    assert refused.value.hint


@given(CLUSTERS, st.integers(1, 8))
def test_the_nodes_hold_every_rank_and_none_is_half_used(
    cluster: Cluster, gpus_per_node: int
) -> None:
    try:
        nodes = nodes_needed(cluster, gpus_per_node)
    except RecipeError:
        return
    world = cluster.tensor_parallel * cluster.pipeline_parallel * cluster.data_parallel
    assert world <= nodes * gpus_per_node
    assert nodes == 1 or world == nodes * gpus_per_node


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("cluster.backend=ray", "cluster.data_parallel=2"), "cluster.data_parallel: copies"),
        (("cluster.min_nodes=3", "cluster.max_nodes=2"), "cluster.max_nodes: at most 2"),
        (("cluster.pipeline_parallel=0",), "cluster.pipeline_parallel: 0 is wrong"),
        (("cluster.min_nodes=0",), "cluster.min_nodes: 0 is wrong"),
    ],
)
def test_sizes_that_contradict_each_other_are_mistakes(
    shipped: Library, settings: tuple[str, ...], words: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe(shipped, "v2", settings)
    assert words in str(refused.value.detail)


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        *((word, "cluster.tensor_parallel") for word in ("-tp=2", "-t", "--tensor=2")),
        *((word, "cluster.pipeline_parallel") for word in ("-pp", "--pipeline_parallel_size=2")),
        *((word, "cluster.data_parallel") for word in ("-dp=2", "-dpl", "--data-parallel-rank")),
        ("--no-data-parallel-hybrid-lb", "cluster.data_parallel"),
        ("--distributed_executor_backend=ray", "cluster.backend"),
        *((word, "the sizes in cluster") for word in ("--nn=2", "-n2")),
        *((word, "--cluster on") for word in ("--node_r=1", "-r1", "--headl")),
        ("--master-addr", "the addresses of cluster.nodes"),
        ("--master-p=1", "cluster.master_port"),
    ],
)
def test_a_parallel_flag_in_any_spelling_is_refused_with_the_field(
    shipped: Library, argument: str, field: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe(shipped, "v2", (f"serve.extra_args=['{argument}']",))
    assert "is set by sparkdeploy" in str(refused.value.detail)
    assert f"use {field}" in str(refused.value.detail)
