"""What is left of a deployment that another machine heads now, or whose nodes have gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy import removal
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.monitor import status
from sparkdeploy.recipe.load import Library
from tests.fakes.containers import container
from tests.fakes.machines import LATER, NEW, OLD, Lab, build, deployed
from tests.fakes.two_nodes import part

Labs = Callable[[int], Lab]


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Labs:
    return lambda count: build(monkeypatch, shipped, count)


def test_everything_down_leaves_what_another_head_has_taken_over(
    labs: Labs, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = deployed(labs(3))
    lab.gone = {"spark-3"}
    lab.down()
    lab.gone = set()
    assert lab.record.nodes("main") == ("spark-3",)
    taken = replace(part(NEW, "x", nodes="spark-2,spark-1", rank="1"), container_id="x")
    lab.engines[0].facts = {"x": taken}
    assert removal.down_all() == ([], [])
    assert lab.engines[0].facts == {"x": taken}
    assert lab.record.nodes("main") == ("spark-3",)
    assert "main stays: spark-2 heads it" in capsys.readouterr().err


@contextlib.contextmanager
def no_cluster(_settings: Any, _names: Any, _this: Any = None) -> Iterator[Any]:
    raise RecipeError("config.yaml names no nodes")
    yield


@pytest.mark.parametrize("leaves", ["a kept part", "a note"])
def test_one_machine_alone_stays_healthy_when_the_cluster_has_gone_from_the_file(
    labs: Labs, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    lab = deployed(labs(2))
    lab.up(LATER, size=1)
    if leaves == "a note":
        lab.record.note("main", ("spark-2",))
    monkeypatch.setattr(status, "open_nodes", no_cluster)
    row = lab.status()
    assert (row.state, row.nodes) == ("healthy", ())
    assert [member.node for member in row.members] == ["cluster"]


def test_a_cluster_whose_nodes_cannot_be_asked_is_not_called_healthy(
    labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = deployed(labs(2))
    monkeypatch.setattr(status, "open_nodes", no_cluster)
    assert lab.status().state == "broken"


def test_a_head_that_has_another_name_by_now_takes_its_workers_down(labs: Labs) -> None:
    lab = deployed(labs(2))
    for engine in lab.engines:
        for key, fact in engine.facts.items():
            engine.facts[key] = replace(fact, labels={**fact.labels, labels.NODES: "old-1,spark-2"})
    lab.record.note("main", ("old-1", "spark-2"))
    lab.down()
    assert lab.names() == [[], []]
    assert lab.record.deployments() == ()


def test_what_is_left_over_on_a_name_that_has_gone_is_forgotten_by_down(labs: Labs) -> None:
    lab = labs(2)
    lab.record.note("main", ("old-2",))
    row = lab.status()
    assert (row.state, row.half_done) == ("left over", "`sparkdeploy down main` forgets it")
    assert lab.down() == ()
    assert status.current_rows() == ()


def test_up_does_not_send_to_a_node_that_is_not_there(labs: Labs) -> None:
    lab = labs(2)
    stale = replace(part(NEW, "x", nodes="old-2,spark-2", rank="1"), container_id="x")
    lab.engines[1].facts = {"x": stale}
    with pytest.raises(NodeError) as caught:
        lab.up(OLD)
    detail = caught.value.detail or ""
    assert "old-2 is not in config.yaml" in detail
    assert f"on spark-2: docker rm -f {NEW}" in detail


def test_what_another_head_has_started_meanwhile_is_refused(
    labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, name = labs(2), "sparkdeploy-other"
    theirs = container(name, deployment="other", nodes="spark-3,spark-2", rank="1")

    def comes(*_: object) -> None:
        lab.engines[1].facts[name] = theirs

    monkeypatch.setattr("sparkdeploy.deploy.prepare.prepare", comes)
    with pytest.raises(NodeError, match="spark-2: in use: spark-3's deployment other is there"):
        lab.up(OLD)
    assert lab.names() == [[], [name]]


def test_a_start_whose_first_rank_failed_leaves_no_note(
    labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = labs(2)

    def fails(_spec: Any) -> str:
        assert set(lab.record.nodes("main")) == {"spark-1", "spark-2"}
        raise NodeError("no space left on device")

    monkeypatch.setattr(lab.engines[1], "create", fails)
    with pytest.raises(NodeError, match="no space left"):
        lab.up(OLD)
    assert lab.record.deployments() == ()
