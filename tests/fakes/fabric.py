"""Sparks among others: what the configuration says of them, and what they themselves report.

Neighbours are cabled at different ports, so that no two nodes of a pair share an interface's name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkdeploy.node.cluster import ClusterConfig, ClusterNode, FabricPort
from sparkdeploy.node.fabric import FabricFact, Interface, RdmaDevice
from sparkdeploy.node.facts import GpuFact, NodeFact
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import make_plan
from sparkdeploy.plan.observed import Observed, ObservedNode
from sparkdeploy.plan.steps import Plan, make_topology
from sparkdeploy.recipe.load import Library, load_recipe
from tests.fakes.plans import FOLDERS, SPARK, made_stages, model_fact


def interfaces_of(number: int) -> tuple[str, str]:
    """Return the names of both twins of the QSFP port that this Spark is cabled at."""
    port = number % 2
    return f"enp1s0f{port}np{port}", f"enP2p1s0f{port}np{port}"


def adapters_of(number: int) -> tuple[str, str]:
    """Return the RDMA devices of these interfaces."""
    return f"rocep1s0f{number % 2}", f"roceP2p1s0f{number % 2}"


def spark(number: int) -> ClusterNode:
    """A Spark with both twins of one QSFP port cabled, as config.yaml has it."""
    ports = zip((177, 178), interfaces_of(number), adapters_of(number), strict=True)
    return ClusterNode(
        name=f"spark-{number}",
        ssh=f"spark-{number}.local",
        fabric=tuple(
            FabricPort(interface=interface, address=f"192.168.{net}.1{number}/24", rdma=adapter)
            for net, interface, adapter in ports
        ),
    )


def sparks(count: int) -> ClusterConfig:
    return ClusterConfig(nodes=tuple(spark(number) for number in range(1, count + 1)))


def fabric_fact(number: int = 1, **changes: object) -> FabricFact:
    """What that Spark reports of the fabric, as its owners describe it."""
    first, second = interfaces_of(number)
    adapters = adapters_of(number)
    known = FabricFact(
        host_name=f"spark-{number}",
        uid=1000,
        gid=1000,
        home="/home/ada",
        clock_s=0.0,
        interfaces=(
            Interface(first, True, 9000, (f"192.168.177.1{number}/24",)),
            Interface(second, True, 9000, (f"192.168.178.1{number}/24",)),
            Interface("wlP9s9", True, 1500, ("10.0.0.5/24",)),
        ),
        rdma=(RdmaDevice(adapters[0], first, True, 3), RdmaDevice(adapters[1], second, True, 3)),
        tools=frozenset({"rsync", "ping", "python3", "sha256sum"}),
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def node_fact(number: int, fabric: FabricFact | None = None, **changes: object) -> NodeFact:
    """What that Spark reports of itself."""
    gpu = GpuFact("NVIDIA GB10", "12.1", driver_version="580.95")
    known = replace(SPARK, name=f"spark-{number}", gpu=gpu, fabric=fabric or fabric_fact(number))
    return replace(known, **changes)  # type: ignore[arg-type]


def two_node_plan(shipped: Library, second: ObservedNode, **changes: Any) -> Plan:
    """Return what `up v2 --cluster` on spark-1 would do with spark-2 like this."""
    resolved = load_recipe(shipped, "v2")
    seen = Observed((ObservedNode(node_fact(1)), second), "registry", model_fact(), **changes)
    return make_plan(
        resolved,
        seen,
        stages=made_stages(resolved.engine),
        deployment=Deployment("main"),
        folders=FOLDERS,
        topology=make_topology(resolved, sparks(2), "spark-1"),
    )
