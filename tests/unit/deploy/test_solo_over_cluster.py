"""One machine takes over what a cluster has served under the same name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.deploy import lifecycle
from sparkdeploy.deploy import nodes as deploy_nodes
from sparkdeploy.errors import NodeError
from tests.fakes.containers import container
from tests.fakes.two_nodes import BOTH, NEW, part

if TYPE_CHECKING:
    import pytest

    from tests.fakes.two_nodes import Pair


def test_one_machine_alone_leaves_the_other_nodes(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.note(*BOTH)
    pair.head.facts["old"] = replace(part(NEW, "old"), container_id="old")
    pair.worker.facts["old"] = replace(part(NEW, "old", rank="1"), container_id="old")
    pair.worker.breaks_with = NodeError("docker is gone")
    pair.lab.up(size=1)
    assert "when spark-2 is back" in capsys.readouterr().err
    assert "spark-2" in pair.noted
    pair.worker.breaks_with = None
    pair.lab.is_answering = True
    pair.lab.up(size=1)
    assert len(pair.worker.facts) + len(pair.noted) == 0
    assert [fact.is_running for fact in pair.head.facts.values()] == [True]


def test_one_machine_alone_asks_for_no_cluster(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(deploy_nodes, "open_nodes", refuse)
    pair.head.facts[NEW] = container(NEW)
    assert lifecycle.roll_back("main").action == "nothing"
    assert capsys.readouterr().err == ""
