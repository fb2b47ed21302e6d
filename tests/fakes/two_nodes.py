"""Two nodes of a cluster without machines: their containers, and what is noted of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sparkdeploy.node.container import ContainerFact
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import Lab

BOTH = ("spark-1", "spark-2")
OLD, NEW = "sparkdeploy-main-replaced", "sparkdeploy-main"


def part(
    name: str, launch: str, state: str = "running", nodes: str = ",".join(BOTH), rank: str = "0"
) -> ContainerFact:
    """A node's container of one `up --cluster`, started now."""
    marks = {"nodes": nodes, "launch": launch, "rank": rank, "startup_timeout_s": "600"}
    fact = container(name, state, **marks)
    now = datetime.now(UTC).isoformat()
    return replace(fact, started_at=now, created_at="1" if name == OLD else "2")


@dataclass
class Pair:
    """A head and a worker, and what is noted of them."""

    lab: Lab

    @property
    def head(self) -> FakeContainers:
        return self.lab.engines[0]

    @property
    def worker(self) -> FakeContainers:
        return self.lab.engines[1]

    @property
    def noted(self) -> tuple[str, ...]:
        return self.lab.record.nodes("main")

    def note(self, *nodes: str) -> None:
        self.lab.record.note("main", nodes)

    def half_replace(self) -> None:
        """As `kill -9` of an `up --cluster` leaves them over another launch."""
        self.note(*BOTH)
        for engine, rank in ((self.head, "0"), (self.worker, "1")):
            for fact in (part(NEW, "new", rank=rank), part(OLD, "old", "exited", rank=rank)):
                engine.facts[fact.container_id] = fact
