"""What an earlier version left behind is seen, ended, brought back and replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.expectation import expectation_on
from sparkdeploy.errors import NodeError
from sparkdeploy.monitor import status
from sparkdeploy.monitor.status_words import status_lines
from tests.fakes.machines import NEW, build
from tests.unit.deploy.upgraded import SCENES, upgraded
from tests.unit.plain import plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkdeploy.recipe.load import Library
    from tests.fakes.machines import Lab

    Brings = Callable[[str], Lab]

FIRST, SECOND = "serve.max_num_seqs=1", "serve.max_num_seqs=2"
KEPT, REPLACED = f"{NEW}-kept-1", f"{NEW}-replaced"
BOTH = ("spark-1", "spark-2")
HALF = "half replaced"

STATES = {
    "solo_kept": ("healthy", "starting"),
    "solo_older": ("healthy", "starting"),
    "solo_half_replaced": (HALF, HALF),
    "solo_rollback_half_done": (HALF, HALF),
    "solo_set_aside": (HALF, HALF),
    "cluster_whole": ("healthy", "starting"),
    "cluster_of_three": ("healthy", "starting"),
    "cluster_half_replaced": (HALF, HALF),
    "cluster_worker_first": (HALF, HALF),
    "cluster_half_settled": (HALF, HALF),
    "cluster_over_solo": (HALF, HALF),
    "cluster_broken": ("broken", "broken"),
    "cluster_left_over": ("left over", "left over"),
}
"""What `status` says of each when its head answers, and when it does not."""
RETURNS = {
    "solo_kept": ("returned", ["a001"]),
    "solo_older": ("returned", ["a001"]),
    "solo_half_replaced": ("reverted", ["a001"]),
    "solo_rollback_half_done": ("reverted", ["a005"]),
    "solo_set_aside": ("reverted", ["a001"]),
    "cluster_whole": ("nothing", ["a004", "b001"]),
    "cluster_of_three": ("nothing", ["a007", "b001", "c004"]),
    "cluster_half_replaced": ("reverted", ["a004", "b001"]),
    "cluster_worker_first": ("reverted", ["a004", "b001"]),
    "cluster_half_settled": ("reverted", ["a004", None]),
    "cluster_over_solo": ("reverted", ["a001", None]),
    "cluster_broken": ("nothing", ["a004", None]),
    "cluster_left_over": ("reverted", [None, None]),
}
"""What `rollback` does, and what runs on each machine then, when the head does not answer."""
FINISHES = {
    **RETURNS,
    "solo_half_replaced": ("finished", ["a005"]),
    "solo_rollback_half_done": ("finished", ["a001"]),
    "cluster_half_replaced": ("finished", ["a012", "b008"]),
    "cluster_half_settled": ("finished", ["a012", "b008"]),
    "cluster_over_solo": ("finished", ["a008", "b004"]),
}
"""The same when it answers."""
COMES_BACK = {
    "solo_kept": ["a005"],
    "solo_older": ["a005"],
    "solo_half_replaced": ["a001"],
    "solo_rollback_half_done": ["a005"],
    "solo_set_aside": ["a001"],
    "cluster_whole": ["a004", "b001"],
    "cluster_of_three": ["a007", "b001", "c004"],
    "cluster_half_replaced": ["a004", "b001"],
    "cluster_worker_first": ["a004", "b001"],
    "cluster_over_solo": ["a001", None],
}
"""What a rollback brings back after an `up` over what did not answer."""


@pytest.fixture
def brings(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Brings:
    """Put what was recorded of a scene into a lab of its own."""
    return lambda scene: upgraded(monkeypatch, shipped, scene)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("answers", [True, False])
def test_status_sees_it(brings: Brings, scene: str, answers: bool) -> None:
    lab = brings(scene)
    lab.is_answering = answers
    row = lab.status()
    assert row.state == STATES[scene][0 if answers else 1]
    assert len(row.members) == lab.count - 1
    assert row.kept == (scene in {"solo_kept", "solo_older"})
    text = "\n".join(plain_lines(status_lines((row,))))
    assert ("`sparkdeploy rollback main` finishes or reverts it" in text) == (row.state == HALF)


@pytest.mark.parametrize("scene", SCENES)
def test_down_ends_it(brings: Brings, scene: str) -> None:
    lab = brings(scene)
    there = sum(map(len, lab.names()))
    assert len(lab.down()) == there
    assert lab.names() == [[]] * lab.count
    assert lab.record.nodes("main") == ()
    assert status.current_rows() == ()


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("answers", [True, False])
def test_rollback_finishes_reverts_or_goes_back(brings: Brings, scene: str, answers: bool) -> None:
    lab = brings(scene)
    lab.is_answering = answers
    action, running = (FINISHES if answers else RETURNS)[scene]
    if scene == "cluster_half_settled" and not answers:
        with pytest.raises(NodeError, match="its other ranks are not"):
            lab.roll_back()
    else:
        assert lab.roll_back() == action
    assert lab.running() == running
    assert not any(REPLACED in names for names in lab.names())
    assert lab.down(missing_ok=running == [None, None]) != () or running == [None, None]
    assert lab.names() == [[]] * lab.count


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("wanted", [FIRST, SECOND])
@pytest.mark.parametrize("answers", [True, False])
def test_up_replaces_it(brings: Brings, scene: str, wanted: str, answers: bool) -> None:
    lab = brings(scene)
    lab.is_answering = answers
    assert lab.up(wanted).changed
    assert lab.running() == [wanted[-1]] * lab.count
    assert lab.record.nodes("main") == (
        () if lab.count == 1 else tuple(f"spark-{number + 1}" for number in range(lab.count))
    )
    assert lab.status().state == "healthy"


@pytest.mark.parametrize("scene", SCENES)
def test_one_machine_alone_may_take_over(brings: Brings, scene: str) -> None:
    lab = brings(scene)
    assert lab.up(FIRST, size=1).changed
    assert lab.running() == ["1"] + [None] * (lab.count - 1)
    assert lab.status().state == "healthy"
    lab.down()
    assert lab.names() == [[]] * lab.count


@pytest.mark.parametrize("scene", sorted(COMES_BACK))
def test_what_an_up_replaced_is_brought_back(brings: Brings, scene: str) -> None:
    lab = brings(scene)
    lab.up(SECOND)
    assert (lab.roll_back(), lab.running()) == ("returned", COMES_BACK[scene])
    assert (lab.roll_back(), lab.running()) == ("returned", ["2"] * lab.count)


@pytest.mark.parametrize("scene", ["cluster_broken", "cluster_half_settled"])
def test_a_part_that_cannot_come_back_is_not_kept(brings: Brings, scene: str) -> None:
    lab = brings(scene)
    lab.up(SECOND)
    assert lab.names() == [[NEW], [NEW]]
    assert lab.status().kept == 0
    assert lab.roll_back() == "nothing"


def test_a_failed_up_brings_it_back(brings: Brings) -> None:
    lab = brings("cluster_whole")

    def dies(_parts: object) -> None:
        raise NodeError("it died")

    lab.wait = dies
    with pytest.raises(NodeError, match="the previous deployment is starting again"):
        lab.up(SECOND)
    assert lab.running() == ["a004", "b001"]
    assert lab.names() == [[NEW], [NEW]]


def test_a_node_that_is_gone_is_shown_and_cleaned_when_it_is_back(
    brings: Brings, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = brings("cluster_whole")
    lab.gone = {"spark-2"}
    row = lab.status()
    assert row.state == "broken"
    assert row.members[0].state.startswith("does not answer (spark-2: nothing listens")
    assert lab.down() == (NEW,)
    assert "again when it is back" in capsys.readouterr().err
    assert lab.record.nodes("main") == ("spark-2",)
    assert lab.status().state == "left over"
    lab.gone = set()
    assert lab.down() == (f"spark-2:{NEW}",)
    assert status.current_rows() == ()


def test_a_worker_names_the_head(brings: Brings) -> None:
    lab = brings("cluster_whole")
    lab.engines = lab.engines[::-1]
    lab.record.note("main", ())
    row = lab.status()
    assert (row.state, row.head) == ("worker", "spark-1")
    with pytest.raises(NodeError, match="which spark-1 heads"):
        lab.down()
    assert lab.names() == [[NEW], [NEW]]


@pytest.mark.parametrize("scene", ["solo_kept", "cluster_whole"])
def test_what_runs_as_planned_is_not_touched(
    monkeypatch: pytest.MonkeyPatch, shipped: Library, brings: Brings, scene: str
) -> None:
    fresh = build(monkeypatch, shipped, brings(scene).count)
    wanted = [part.spec.fingerprint() for part in fresh.up(FIRST).plan.parts if part.spec]
    lab = brings(scene)
    lab.is_answering = True
    for engine, fingerprint in zip(lab.engines, wanted, strict=True):
        for key, fact in engine.facts.items():
            marks = {**fact.labels, labels.FINGERPRINT: fingerprint}
            engine.facts[key] = replace(fact, labels=marks)
    assert not lab.up(FIRST).changed
    assert lab.steps == 0


def test_the_expectation_of_a_solo_container_is_read(brings: Brings) -> None:
    facts = brings("solo_kept").engines[0].own_containers()
    expected = [expectation_on(fact) for fact in facts]
    assert [item is not None and item.treatment is not None for item in expected] == [True, True]
