"""Which of several ends came first, and what is said of it."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from sparkdeploy.deploy import wait
from sparkdeploy.deploy.wait import End, GroupWatch, earliest
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import Node, node_behind
from tests.engine.conftest import until

pytestmark = pytest.mark.outside


class Engine:
    """A Docker Engine with one container, as far as a watch asks it."""

    def __init__(self, fact: ContainerFact | None) -> None:
        self.fact = fact
        self.stopped: list[str] = []
        self.is_lost = False
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def find_container(self, reference: str) -> ContainerFact | None:
        self.asked += 1
        self.answers.wait()
        if self.is_lost:
            raise NodeError("spark-2: it broke off")
        return self.fact

    def stop(self, container_id: str, *, timeout_s: int) -> None:
        self.stopped.append(container_id)


def fact(state: str, finished_at: str = "") -> ContainerFact:
    return ContainerFact("c" * 64, "sparkdeploy-main", "i", state, {}, 1, finished_at=finished_at)


def watch(skews_s: dict[str, float] | None = None, **engines: Engine) -> GroupWatch:
    nodes = {name: node_behind(name, cast(DockerHost, it)) for name, it in engines.items()}
    return GroupWatch({node: f"id-{name}" for name, node in nodes.items()}, skews_s or {})


def test_one_without_a_time_is_the_first_only_when_none_has_one() -> None:
    node = Node("a")
    found = watch(a=Engine(fact("exited", "2026-11-21T10:00:01Z"))).find_first()
    assert found is not None
    unknown = End(node, "c", None)
    assert earliest((unknown, found)) is found
    assert earliest((unknown,)) is unknown


def test_the_first_death_stops_all_the_others() -> None:
    head, worker = Engine(fact("running")), Engine(fact("running"))
    with watch(a=head, b=worker) as group:
        assert group.first is None
        worker.fact = fact("exited", "2026-11-21T10:00:00Z")
        until(lambda: bool(head.stopped))
    assert group.first is not None
    assert group.first.node.name == "b"
    assert head.stopped == ["id-a"]


def test_a_node_that_is_lost_stops_all_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "LOST_AFTER_S", 0.01)
    head, worker = Engine(fact("running")), Engine(fact("running"))
    with watch(a=head, b=worker) as group:
        worker.is_lost = True
        until(lambda: bool(head.stopped))
    assert group.first is not None
    assert (group.first.node.name, group.first.fact) == ("b", None)


def test_a_node_that_hangs_keeps_nobody_from_seeing_the_death_of_another() -> None:
    hanging, worker = Engine(fact("running")), Engine(fact("running"))
    with watch(a=hanging, b=worker, c=Engine(fact("running"))) as group:
        hanging.answers.clear()
        seen = hanging.asked
        until(lambda: hanging.asked > seen)
        worker.fact = fact("exited", "2026-11-21T10:00:00Z")
        looks = worker.asked
        until(lambda: worker.asked > looks)
        hanging.answers.set()
        until(lambda: bool(worker.stopped))
    assert group.first is not None
    assert group.first.node.name == "b"


def test_what_a_look_finds_after_the_watch_was_left_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait, "LOST_AFTER_S", 0.01)
    head, worker = Engine(fact("running")), Engine(fact("running"))
    group = watch(a=head, b=worker)
    with group:
        worker.answers.clear()
        seen = worker.asked
        until(lambda: worker.asked > seen)
    worker.fact = fact("exited", "2026-11-21T10:00:00Z")
    worker.answers.set()
    for thread in group._threads:
        thread.join()
    assert (group.first, head.stopped, worker.stopped) == (None, [], [])


@pytest.mark.parametrize(
    ("ended_at", "skew_s"), [("2026-11-21T10:00:01Z", 0.0), ("2026-11-21T09:59:03Z", -60.0)]
)
def test_whoever_asks_before_the_watch_has_looked_learns_the_first_as_well(
    ended_at: str, skew_s: float
) -> None:
    """By our clock, also when that of another node is wrong."""
    head, worker = (Engine(fact("exited", it)) for it in ("2026-11-21T10:00:02Z", ended_at))
    found = watch({"b": skew_s}, a=head, b=worker).find_first()
    assert found is not None
    assert found.node.name == ("b" if skew_s == 0 else "a")
    assert watch(a=Engine(fact("running"))).find_first() is None


def test_a_node_that_does_not_answer_is_lost() -> None:
    broken = NodeError("spark-2: it broke off", hint="h")
    error = End(Node("spark-2"), "id", None, lost=broken).error()
    assert error.message == "spark-2: lost while it was waited for: it broke off"
    assert error.hint == "h"
