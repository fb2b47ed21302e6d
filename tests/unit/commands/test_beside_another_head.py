"""What is left of a deployment that another machine heads now, or whose nodes have gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.commands import operate
from tests.unit.commands.lab import NEW, Lab, build
from tests.unit.commands.two_nodes import part

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkdeploy.recipe.load import Library

    Labs = Callable[[int], Lab]

OLD, LATER = "serve.max_num_seqs=1", "serve.max_num_seqs=2"


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Labs:
    return lambda count: build(monkeypatch, shipped, count)


def deployed(lab: Lab) -> Lab:
    lab.up(OLD)
    lab.is_answering = True
    return lab


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
    assert operate.take_everything_down() == ()
    assert lab.engines[0].facts == {"x": taken}
    assert lab.record.nodes("main") == ("spark-3",)
    assert "main stays: it is a part of what spark-2 heads" in capsys.readouterr().err
