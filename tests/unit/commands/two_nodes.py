"""Two nodes of a cluster without machines: their containers, and what is noted of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.node.machines import Cluster, ClusterMachine
from sparkdeploy.settings import load_settings
from tests.unit.fake_containers import container
from tests.unit.plan.test_cluster_launch import spark, sparks

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.ssh import SshLink
    from tests.unit.fake_containers import FakeContainers

BOTH = ("spark-1", "spark-2")
OLD, NEW = "sparkdeploy-main-replaced", "sparkdeploy-main"


def part(
    name: str, launch: str, state: str = "running", nodes: str = ",".join(BOTH)
) -> ContainerFact:
    """A node's container of one `up --cluster`, started now."""
    fact = container(name, state, nodes=nodes, launch=launch, startup_timeout_s="600")
    now = datetime.now(UTC).isoformat()
    return replace(fact, started_at=now, created_at="1" if name == OLD else "2")


@dataclass
class Pair:
    """A head and a worker, and what is noted of them."""

    head: FakeContainers
    worker: FakeContainers

    @property
    def cluster(self) -> Cluster:
        link = SimpleNamespace(docker_address="ssh://spark-2", is_open=True)
        machines = (
            ClusterMachine(spark(1), None),
            ClusterMachine(spark(2), cast("SshLink", link)),
        )
        for machine, engine in zip(machines, (self.head, self.worker), strict=True):
            machine._docker = engine.host
        return Cluster(sparks(2), machines)

    @property
    def noted(self) -> tuple[str, ...]:
        return ClusterRecord.below(load_settings().state_dir).nodes("main")

    def note(self, *nodes: str) -> None:
        ClusterRecord.below(load_settings().state_dir).note("main", nodes)

    def half_replace(self) -> None:
        """As `kill -9` of an `up --cluster` leaves them over another launch."""
        self.note(*BOTH)
        for engine in (self.head, self.worker):
            for fact in (part(NEW, "new"), part(OLD, "old", "exited")):
                engine.facts[fact.container_id] = fact
