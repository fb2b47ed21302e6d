"""Write down what `up --cluster` starts on two machines, for `two.py` to start on two GPUs of one.

`python tests/gpu/stand/two_plan.py > two.json`, in this checkout. Arguments and environment of each
rank are the product's own, for two nodes on loopback without RDMA: NCCL goes over sockets.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkdeploy.node.cluster import ClusterConfig, ClusterNode, FabricPort
from sparkdeploy.plan import launch
from sparkdeploy.plan.steps import NodeRank, Topology, for_cluster, make_topology
from sparkdeploy.recipe.fallbacks import launched
from sparkdeploy.recipe.load import Library, Resolved, load_recipe

REPOSITORY = Path(__file__).resolve().parents[3]
FIRST_MASTER_PORT, FIRST_API_PORT, FIRST_RAY_PORT = 29_600, 8400, 6400
WIDE, NERVOUS, OVERLAYS = "/tmp/m/twins/wide", "/tmp/m/twins/nervous", "/tmp/m/m/ck"
NARROW = "/tmp/m/twins/narrow"
TWIN = ("serve.max_model_len=4096", "serve.attention_backend=null")
"""FlashInfer is not packed; what vLLM chooses on the card is the same for one rank and two."""
NO_DRAFTS = "cluster.speculative=off"
OVER_RAY = "cluster.backend=ray"
PIPELINE = (NO_DRAFTS, "cluster.tensor_parallel=1", "cluster.pipeline_parallel=2")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A server: its recipe, what `--set` changes in it, and the twin that it serves."""

    name: str
    recipe: str
    model: str
    settings: tuple[str, ...] = ()
    is_eager: bool = False
    timing: bool = False
    long_context: bool = False


NATIVE = (
    Wanted("base", "baseline", WIDE),
    Wanted("v2-mtp0", "v2", f"{OVERLAYS}/v2", (NO_DRAFTS,), timing=True),
    Wanted("v2", "v2", f"{OVERLAYS}/v2", timing=True),
    Wanted("v3", "v3", f"{OVERLAYS}/v3", timing=True),
    Wanted("v2-tq", "v2-tq", NERVOUS, timing=True, long_context=True),
    Wanted("pipeline", "v2", f"{OVERLAYS}/v2", PIPELINE, is_eager=True),
    Wanted("prebuilt", "mtp-2", f"{OVERLAYS}/prebuilt", is_eager=True),
    Wanted("v2-draft", "v2", f"{OVERLAYS}/v2-draft", is_eager=True),
    Wanted("v2-mtp1", "mtp-1", f"{OVERLAYS}/v2", is_eager=True),
    Wanted("35b", "35b-v2", f"{OVERLAYS}/35b-v2", is_eager=True),
    Wanted("35b-base", "baseline", NARROW, is_eager=True),
)
RAY = (
    Wanted("ray-v2", "v2", f"{OVERLAYS}/v2", (OVER_RAY,), timing=True),
    Wanted("ray-v2-mtp0", "v2", f"{OVERLAYS}/v2", (OVER_RAY, NO_DRAFTS), timing=True),
    Wanted("ray-v3", "v3", f"{OVERLAYS}/v3", (OVER_RAY,), is_eager=True),
    Wanted("ray-pipeline", "v2", f"{OVERLAYS}/v2", (OVER_RAY, *PIPELINE), is_eager=True),
)


def main() -> int:
    library = Library((REPOSITORY / "recipes",))
    servers = [described(library, wanted, number) for number, wanted in enumerate((*NATIVE, *RAY))]
    json.dump({"servers": servers}, sys.stdout, indent=1)
    return 0


def described(library: Library, wanted: Wanted, number: int) -> dict[str, object]:
    port = FIRST_API_PORT + number
    settings = (*TWIN, *wanted.settings, f"serve.port={port}")
    resolved = for_cluster(load_recipe(library, wanted.recipe, settings))
    topology = make_topology(resolved, two_nodes(number), "one")
    return {
        "name": wanted.name,
        "port": port,
        "model": wanted.model,
        "is_eager": wanted.is_eager,
        "timing": wanted.timing,
        "long_context": wanted.long_context,
        "backend": topology.backend,
        "ranks": list(ranks(resolved, topology, wanted.model)),
    }


def two_nodes(number: int) -> ClusterConfig:
    """Addresses and ports that no other server of the sitting has."""
    nodes = tuple(
        ClusterNode(
            name=name,
            ssh=name,
            fabric=(FabricPort(interface="lo", address=f"127.0.{number}.{last}/8"),),
        )
        for last, name in enumerate(("one", "two"), start=2)
    )
    return ClusterConfig(
        nodes=nodes, master_port=FIRST_MASTER_PORT + 10 * number, ray_port=FIRST_RAY_PORT + number
    )


def ranks(resolved: Resolved, topology: Topology, model: str) -> Iterator[dict[str, object]]:
    for rank in topology.ranks:
        yield {"argv": argv(resolved, topology, rank, model), "env": env(resolved, topology, rank)}


def argv(resolved: Resolved, topology: Topology, rank: NodeRank, model: str) -> tuple[str, ...]:
    recipe = launched(resolved.recipe, resolved.engine)
    serve = launch.serve_argv(recipe, model)
    return launch.rank_command(resolved.recipe, topology, rank, serve)


def env(resolved: Resolved, topology: Topology, rank: NodeRank) -> dict[str, str]:
    own = launch.serve_env(resolved.recipe, resolved.engine)
    return own | launch.fabric_env(resolved, topology, rank)


if __name__ == "__main__":
    sys.exit(main())
