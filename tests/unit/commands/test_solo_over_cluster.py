"""One machine takes over what a cluster has served under the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.commands import cluster_operate, cluster_recovery, rollback
from sparkdeploy.commands import up as deploy
from sparkdeploy.commands.drafting import Request
from sparkdeploy.errors import NodeError
from sparkdeploy.settings import load_settings
from tests.unit.commands.two_nodes import BOTH, NEW, part
from tests.unit.fake_containers import FakeContainers, container

if TYPE_CHECKING:
    import pytest

    from tests.unit.commands.two_nodes import Pair


def test_one_machine_alone_leaves_the_other_nodes(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.note(*BOTH)
    pair.head.facts[NEW] = container(NEW)
    pair.worker.facts[NEW] = part(NEW, "old")
    pair.worker.breaks_with = NodeError("docker is gone")
    settings = load_settings()
    deploy._leave_cluster(Request("v2"), settings, pair.head.host)
    assert "may remain there: run the same `sparkdeploy up` again" in capsys.readouterr().err
    assert pair.noted == ("spark-2",)
    pair.worker.breaks_with = None
    deploy._leave_cluster(Request("v2"), settings, pair.head.host)
    assert len(pair.worker.facts) + len(pair.noted) == 0
    assert pair.head.states == {f"{NEW}/{NEW}": "running"}


def test_a_cluster_that_came_between_keeps_its_nodes(pair: Pair) -> None:
    pair.note(*BOTH)
    pair.head.facts[NEW] = pair.worker.facts[NEW] = part(NEW, "one")
    deploy._leave_cluster(Request("v2"), load_settings(), pair.head.host)
    assert (pair.noted, len(pair.worker.facts)) == (BOTH, 1)


def test_one_machine_alone_asks_for_no_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(cluster_operate, "connected", refuse)
    monkeypatch.setattr(cluster_recovery, "connected", refuse)
    engine = FakeContainers.of(container(NEW))
    deploy._leave_cluster(Request("v2"), load_settings(), engine.host)
    monkeypatch.setattr(rollback, "connect", lambda _settings: engine)
    assert rollback.roll_back("main").action == "nothing"
    assert capsys.readouterr().err == ""
