"""What a command that died left on several nodes, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy import lifecycle
from sparkdeploy.errors import NodeError, UnhealthyError
from tests.fakes.containers import container
from tests.fakes.machines import launches
from tests.fakes.two_nodes import BOTH, NEW, OLD, part

if TYPE_CHECKING:
    from tests.fakes.two_nodes import Pair

OLD_IS_BACK = {f"{OLD}/{NEW}": "running"}


def test_a_node_that_is_gone_keeps_its_note_and_is_settled_later(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.half_replace()
    pair.worker.breaks_with = NodeError("docker is gone")
    with pytest.raises(NodeError, match="its other ranks are not: spark-2: docker is gone"):
        lifecycle.roll_back("main")
    assert "`sparkdeploy rollback main` again when spark-2 is back" in capsys.readouterr().err
    assert (pair.head.states, pair.noted) == (OLD_IS_BACK, BOTH)
    pair.worker.breaks_with = None
    assert lifecycle.roll_back("main").action == "reverted"
    assert pair.worker.states == OLD_IS_BACK


def test_a_whole_cluster_without_kept_containers_has_no_way_back(pair: Pair) -> None:
    pair.note(*BOTH)
    for engine, rank in ((pair.head, "0"), (pair.worker, "1")):
        engine.facts[NEW] = part(NEW, "one", rank=rank)
    assert lifecycle.roll_back("main").action == "nothing"
    assert pair.head.states == pair.worker.states == {f"{NEW}/{NEW}": "running"}


@pytest.mark.parametrize("before", [(), BOTH])
def test_a_launch_that_fails_leaves_the_note_as_it_was(pair: Pair, before: tuple[str, ...]) -> None:
    pair.note(*before)
    pair.head.facts["old"] = part(NEW, "old") if before else container(NEW)
    pair.head.facts["old"] = replace(pair.head.facts["old"], container_id="old")
    seen: list[set[str]] = []

    def fail(_parts: object) -> None:
        seen.append(launches(pair.lab))
        raise UnhealthyError("it died")

    pair.lab.wait = fail
    with pytest.raises(UnhealthyError):
        pair.lab.up()
    assert [len(launches) for launches in seen] == [1]
    assert (pair.head.states, pair.worker.states) == ({f"old/{NEW}": "running"}, {})
    assert pair.noted == before
