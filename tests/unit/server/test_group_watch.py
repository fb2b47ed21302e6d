"""Which of several ends came first, and what is said of it."""

from __future__ import annotations

from typing import cast

import pytest

from sparkdeploy.deploy.watch import End, GroupWatch, Member, earliest
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import until

pytestmark = pytest.mark.outside


class Engine:
    """A Docker Engine with one container, as far as a watch asks it."""

    def __init__(self, fact: ContainerFact | None) -> None:
        self.fact = fact
        self.stopped: list[str] = []
        self.is_lost = False

    def find_container(self, reference: str) -> ContainerFact | None:
        if self.is_lost:
            raise NodeError("spark-2: the ssh connection broke off", hint="mend it")
        return self.fact

    def stop(self, container_id: str, *, timeout_s: int) -> None:
        self.stopped.append(container_id)


def fact(state: str, finished_at: str = "") -> ContainerFact:
    return ContainerFact("c" * 64, "sparkdeploy-main", "i", state, {}, 1, finished_at=finished_at)


def member(node: str, engine: Engine, skew_s: float = 0.0) -> Member:
    return Member(node, cast(DockerHost, engine), f"id-{node}", skew_s)


def test_the_earliest_end_is_the_first_also_when_a_clock_is_wrong() -> None:
    none = Engine(None)
    early = End(member("a", none), fact("exited", "2026-11-21T10:00:01Z"))
    late = End(member("b", none, skew_s=-60), fact("exited", "2026-11-21T09:59:05Z"))
    assert earliest((late, early)) is early
    assert earliest((End(member("c", none), None), early)) is early
    assert earliest((only := End(member("c", none), None),)) is only


def test_the_first_death_stops_all_the_others() -> None:
    head, worker = Engine(fact("running")), Engine(fact("running"))
    with GroupWatch([member("a", head), member("b", worker)]) as watch:
        assert watch.first is None
        worker.fact = fact("exited", "2026-11-21T10:00:00Z")
        until(lambda: bool(head.stopped))
    assert watch.first is not None
    assert watch.first.member.node == "b"
    assert head.stopped == ["id-a"]


def test_whoever_asks_before_the_watch_has_looked_learns_the_first_as_well() -> None:
    head = Engine(fact("exited", "2026-11-21T10:00:02Z"))
    worker = Engine(fact("exited", "2026-11-21T10:00:01Z"))
    found = GroupWatch([member("a", head), member("b", worker)]).find_first()
    assert found is not None
    assert found.member.node == "b"
    assert GroupWatch([member("a", Engine(fact("running")))]).find_first() is None


def test_a_node_that_does_not_answer_is_lost() -> None:
    lost = End(member("spark-2", Engine(None)), None, NodeError("spark-2: it broke off", hint="h"))
    error = lost.error()
    assert error.message == "spark-2: lost while it was waited for: it broke off"
    assert error.hint == "h"
