"""The containers of a cluster, against reviewed files, and the laws they obey."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from sparkdeploy import labels
from sparkdeploy.errors import RecipeError
from sparkdeploy.node.cluster import ClusterConfig, ClusterNode, FabricPort, read_cluster
from sparkdeploy.node.container import ContainerSpec
from sparkdeploy.plan.container import (
    GUARD_MEMLOCK_BYTES,
    Deployment,
    NodePaths,
    probe_spec,
    rank_spec,
)
from sparkdeploy.plan.launch import rank_command
from sparkdeploy.plan.steps import Topology, for_cluster, make_topology
from sparkdeploy.recipe import flags
from sparkdeploy.recipe.load import Library, Resolved, load_recipe
from tests.fakes.fabric import adapters_of, interfaces_of, sparks
from tests.fakes.plans import FOLDERS, model_fact
from tests.unit.golden import assert_golden, difference

IMAGE = "sparkdeploy/plugin:0123456789abcdef"
PATHS = NodePaths(FOLDERS, model_fact())


def formation_of(resolved: Resolved, count: int) -> Topology:
    gid_indexes = {f"spark-{number}": 3 for number in range(1, count + 1)}
    return make_topology(resolved, sparks(count), "spark-1", gid_indexes)


def specs_of(
    resolved: Resolved, count: int, *, is_public: bool = False
) -> dict[str, ContainerSpec]:
    topology = formation_of(resolved, count)
    return {
        rank.node: rank_spec(
            resolved,
            topology,
            rank,
            image=IMAGE,
            deployment=Deployment("main", is_public=is_public),
            paths=PATHS,
        )
        for rank in topology.ranks
    }


def v2_over(shipped: Library, backend: str, count: int) -> dict[str, ContainerSpec]:
    resolved = load_recipe(
        shipped, "v2", [f"cluster.backend={backend}", f"cluster.tensor_parallel={count}"]
    )
    return specs_of(resolved, count)


def as_json(spec: ContainerSpec) -> str:
    return json.dumps(asdict(spec), indent=2, sort_keys=True)


@pytest.mark.parametrize("backend", ["native", "ray"])
def test_the_containers_of_v2_over_two_nodes(
    request: pytest.FixtureRequest, shipped: Library, backend: str
) -> None:
    specs = {name: asdict(spec) for name, spec in v2_over(shipped, backend, 2).items()}
    text = json.dumps(specs, indent=2, sort_keys=True) + "\n"
    assert_golden(request, f"cluster/{backend}-2.json", text)


@pytest.mark.parametrize("backend", ["native", "ray"])
def test_how_the_containers_of_four_nodes_differ_from_those_of_two(
    request: pytest.FixtureRequest, shipped: Library, backend: str
) -> None:
    head, worker = map(as_json, v2_over(shipped, backend, 2).values())
    first, *others = map(as_json, v2_over(shipped, backend, 4).values())
    parts = [difference(head, first), *(difference(worker, other) for other in others)]
    assert_golden(request, f"cluster/{backend}-4.diff", "\n".join(parts))


@pytest.mark.parametrize("backend", ["native", "ray"])
def test_only_the_head_may_be_public(shipped: Library, backend: str) -> None:
    resolved = load_recipe(shipped, "v2", [f"cluster.backend={backend}"])
    head, worker = specs_of(resolved, 2, is_public=True).values()
    assert "--key-file" in head.command
    assert "0.0.0.0" in head.command
    assert "0.0.0.0" not in worker.command
    assert [mount.target for mount in worker.mounts if "key" in mount.target] == []


def test_every_flag_stands_once_and_ranks_differ(shipped: Library) -> None:
    specs = list(specs_of(load_recipe(shipped, "v2", ["cluster.tensor_parallel=4"]), 4).values())
    for rank, spec in enumerate(specs):
        named = [flags.flag_of(item) for item in spec.command if item.startswith("--")]
        assert len(named) == len(set(named))
        assert spec.command[spec.command.index("--node-rank") + 1] == str(rank)
        assert ("--headless" in spec.command) == (rank > 0)
        assert spec.labels[labels.NODES] == "spark-1,spark-2,spark-3,spark-4"


def test_copies_and_stages_are_counted_over_all_nodes(shipped: Library) -> None:
    def commands(*sizes: str) -> list[str]:
        resolved = load_recipe(shipped, "v2", ["cluster.tensor_parallel=1", *sizes])
        made = make_topology(resolved, sparks(2), "spark-1", gpus_per_node=2)
        return [" ".join(rank_command(resolved.recipe, made, it, ("vllm",))) for it in made.ranks]

    head, worker = commands("cluster.data_parallel=4")
    shared = "vllm --data-parallel-size 4 --data-parallel-size-local 2 --data-parallel-address"
    assert head.startswith(f"{shared} 192.168.177.11 --data-parallel-rpc-port 13345")
    assert worker == f"{head} --data-parallel-start-rank 2 --headless"
    stages = commands("cluster.pipeline_parallel=4")
    assert all("--tensor-parallel-size 1 --pipeline-parallel-size 4 " in it for it in stages)


def test_one_node_of_several_that_serves_alone_gets_no_more_than_one_machine(
    shipped: Library,
) -> None:
    (spec,) = specs_of(load_recipe(shipped, "v2", ["cluster.tensor_parallel=1"]), 2).values()
    assert (spec.devices, spec.cap_add) == ((), ())
    assert [limit.value for limit in spec.ulimits] == [GUARD_MEMLOCK_BYTES]


def test_workers_start_first_but_a_ray_worker_must_find_its_head(shipped: Library) -> None:
    native = formation_of(load_recipe(shipped, "v2"), 3)
    assert [rank.node for rank in native.start_order] == ["spark-2", "spark-1"]
    ray = formation_of(load_recipe(shipped, "v2", ["cluster.backend=ray"]), 3)
    assert [rank.node for rank in ray.start_order] == ["spark-1", "spark-2"]


def test_the_machine_of_the_command_is_the_head_and_spare_nodes_are_named(shipped: Library) -> None:
    topology = make_topology(load_recipe(shipped, "v2"), sparks(4), "spark-3")
    assert [rank.node for rank in topology.ranks] == ["spark-3", "spark-1"]
    assert topology.left_alone == ("spark-2", "spark-4")


@pytest.mark.parametrize(
    ("override", "expected"), [("off", None), ("{method: mtp, tokens: 1}", 1), ("null", 2)]
)
def test_speculation_can_differ_on_a_cluster(
    shipped: Library, override: str, expected: int | None
) -> None:
    resolved = for_cluster(load_recipe(shipped, "v2", [f"cluster.speculative={override}"]))
    speculative = resolved.recipe.serve.speculative
    assert (speculative.tokens if speculative else None) == expected


def test_without_rdma_nccl_uses_sockets_and_nothing_more_is_granted(shipped: Library) -> None:
    resolved = load_recipe(shipped, "v2")
    plain = FabricPort(interface="eth1", address="10.0.0.1/24")
    nodes = (
        ClusterNode(name="a", ssh="a", fabric=(plain,)),
        ClusterNode(name="b", ssh="b", fabric=(FabricPort(interface="e", address="10.0.0.2/24"),)),
    )
    topology = make_topology(resolved, ClusterConfig(nodes=nodes), "a")
    spec = rank_spec(
        resolved, topology, topology.head, image=IMAGE, deployment=Deployment("main"), paths=PATHS
    )
    assert spec.env["NCCL_IB_DISABLE"] == "1"
    assert (spec.devices, spec.cap_add) == ((), ())


def test_a_recipe_that_allows_sockets_leaves_the_transport_to_nccl(shipped: Library) -> None:
    resolved = load_recipe(shipped, "v2", ["backends.warn_only=[transport]"])
    for number, spec in enumerate(specs_of(resolved, 2).values(), start=1):
        assert "NCCL_NET" not in spec.env
        assert spec.env["NCCL_IB_HCA"] == ",".join(adapters_of(number))


def test_what_a_recipe_says_of_nccl_goes_before_what_follows_from_the_nodes(
    shipped: Library,
) -> None:
    chosen = ("serve.env.NCCL_NET=Socket", "serve.env.NCCL_DEBUG=WARN")
    specs = specs_of(load_recipe(shipped, "v2", chosen), 2)
    for number, spec in enumerate(specs.values(), start=1):
        assert (spec.env["NCCL_NET"], spec.env["NCCL_DEBUG"]) == ("Socket", "WARN")
        assert spec.env["NCCL_SOCKET_IFNAME"] == interfaces_of(number)[0]


def test_nccl_writes_to_a_file_under_ray_only_where_the_recipe_says_so(shipped: Library) -> None:
    ray = load_recipe(shipped, "v2", ["cluster.backend=ray"])
    chosen = ("cluster.backend=ray", "serve.env.NCCL_DEBUG_FILE=/tmp/nccl.log")
    for spec in specs_of(ray, 2).values():
        assert "NCCL_DEBUG_FILE" not in spec.env
    for spec in specs_of(load_recipe(shipped, "v2", chosen), 2).values():
        assert spec.env["NCCL_DEBUG_FILE"] == "/tmp/nccl.log"


def test_a_container_that_looks_is_like_the_one_of_the_launch(shipped: Library) -> None:
    resolved = load_recipe(shipped, "v2")
    topology = make_topology(resolved, sparks(2), "spark-1", {"spark-1": 3, "spark-2": 5})
    for rank in topology.ranks:
        serving = rank_spec(
            resolved, topology, rank, image=IMAGE, deployment=Deployment("main"), paths=PATHS
        )
        looking = probe_spec(
            resolved, topology, rank, image=IMAGE, model=PATHS.model, command=("-c", "1")
        )
        differs = {key for key, value in asdict(serving).items() if value != asdict(looking)[key]}
        assert differs == {"name", "entrypoint", "command", "mounts", "labels"}
        without = probe_spec(resolved, topology, rank, image=IMAGE, model=None, command=())
        assert without.user == "65532:65532"


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (None, "names no nodes"),
        ({"nodes": []}, "cluster.nodes"),
        ({"nodes": [{"name": "a", "ssh": "a", "fabric": []}]}, "cluster.nodes.0.fabric"),
        ({"nodes": [], "color": 1}, "cluster.color"),
    ],
)
def test_mistakes_in_the_configuration_are_named(section: object, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_cluster(section, "config.yaml")  # type: ignore[arg-type]
    assert words in f"{caught.value.message} {caught.value.detail}"


def test_an_address_without_prefix_and_a_doubled_one_are_refused() -> None:
    node = {"name": "a", "ssh": "a", "fabric": [{"interface": "e", "address": "10.0.0.1"}]}
    with pytest.raises(RecipeError) as caught:
        read_cluster({"nodes": [node, node]}, "config.yaml")
    assert "with its prefix" in str(caught.value.detail)
    node["fabric"] = [{"interface": "e", "address": "10.0.0.1/24"}]
    with pytest.raises(RecipeError) as caught:
        read_cluster({"nodes": [node, {**node, "name": "b"}]}, "config.yaml")
    assert "10.0.0.1 is given twice" in str(caught.value.detail)


@pytest.mark.parametrize(
    ("ssh", "address", "words"),
    [
        ("-v", "10.0.0.1/24", "is no host"),
        ("spark 1", "10.0.0.1/24", "is no host"),
        ("spark:2222", "10.0.0.1/24", "(`Host spark`, `Port 2222`)"),
        ("spark", "fe80::1/64", "is IPv6"),
    ],
)
def test_what_ssh_or_vllm_cannot_take_is_refused(ssh: str, address: str, words: str) -> None:
    node = {"name": "a", "ssh": ssh, "fabric": [{"interface": "e", "address": address}]}
    with pytest.raises(RecipeError) as caught:
        read_cluster({"nodes": [node, node]}, "config.yaml")
    assert words in str(caught.value.detail)
