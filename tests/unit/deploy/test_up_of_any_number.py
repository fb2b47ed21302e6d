"""One table of cases for one, two and three machines: the same `up`, over fakes."""

from __future__ import annotations

import functools
import signal
from dataclasses import replace
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import deployments_in
from sparkdeploy.deploy.launch import Launch
from sparkdeploy.deploy.up import Extent
from sparkdeploy.deploy.wait import GroupWatch
from sparkdeploy.errors import NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.node.facts import own_name
from sparkdeploy.node.lock import node_lock
from sparkdeploy.node.node import Node
from sparkdeploy.recipe.load import Library
from sparkdeploy.server.crash import Cause
from sparkdeploy.server.health import ContainerDiedError, Readiness
from sparkdeploy.settings import load_settings
from tests.fakes.containers import container
from tests.fakes.fabric import fabric_fact
from tests.fakes.machines import (
    LATER,
    NEW,
    OLD,
    Killed,
    Lab,
    build,
    check_whole,
    deployed,
    dies,
    interrupts,
)


@pytest.fixture(params=[1, 2, pytest.param(3, marks=pytest.mark.slow)])
def lab(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    return build(monkeypatch, shipped, request.param)


def test_a_first_start(lab: Lab) -> None:
    outcome = lab.up(OLD)
    assert outcome.changed
    check_whole(lab, "1")
    assert lab.record.nodes("main") == (
        () if lab.count == 1 else tuple(f"spark-{n + 1}" for n in range(lab.count))
    )
    assert lab.down() != ()
    assert lab.names() == [[]] * lab.count


def test_the_printed_plan_is_the_one_that_is_applied(lab: Lab) -> None:
    outcome = lab.up(OLD)
    assert outcome.plan is lab.planned[-1]
    assert len(lab.planned) == 1
    assert [planned.rank.number for planned in outcome.plan.nodes] == list(range(lab.count))


def test_a_replacement_keeps_the_old_one_for_rollback(lab: Lab) -> None:
    deployed(lab).up(LATER)
    check_whole(lab, "2")
    assert lab.names() == [[NEW, f"{NEW}-kept-1"]] * lab.count
    assert lab.roll_back() == "returned"
    check_whole(lab, "1")
    assert lab.roll_back() == "returned"
    check_whole(lab, "2")


def test_one_predecessor_is_kept_and_the_last_one_is_gone_back_to(lab: Lab) -> None:
    deployed(lab).up(LATER)
    lab.up("serve.max_num_seqs=3")
    assert lab.names() == [[NEW, f"{NEW}-kept-2"]] * lab.count
    # A kill between the two steps of a commit leaves one more.
    kept = container(f"{NEW}-kept-10", "exited")
    lab.engines[0].facts["ten"] = replace(kept, container_id="ten")
    found = deployments_in(lab.engines[0].own_containers())["main"]
    assert [fact.name for fact in found.kept] == [f"{NEW}-kept-10", f"{NEW}-kept-2"]
    lab.up("serve.max_num_seqs=3")
    assert lab.names()[0] == [NEW, f"{NEW}-kept-10"]


def test_a_detached_start_is_settled_by_the_next_command(lab: Lab) -> None:
    deployed(lab)
    lab.up(LATER, extent=Extent.DETACH)
    assert lab.names() == [[NEW, f"{NEW}-replaced"]] * lab.count
    outcome = lab.up(LATER)
    assert not outcome.changed
    check_whole(lab, "2")


def test_a_detached_start_that_is_not_what_was_planned_is_reverted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(lab)
    lab.up(LATER, extent=Extent.DETACH)

    def fell_back(*_: object) -> None:
        raise UnhealthyError("planned off, runs mtp 2")

    monkeypatch.setattr("sparkdeploy.deploy.expectation.verify_rank", fell_back)
    assert lab.roll_back() == "reverted"
    check_whole(lab, "1")


def test_a_second_up_during_a_start_waits_for_it(lab: Lab) -> None:
    lab.up(OLD, extent=Extent.DETACH)
    before = lab.names()
    outcome = lab.up(OLD)
    assert (outcome.changed, lab.waits, lab.steps) == (False, 1, 0)
    assert lab.names() == before
    fact = lab.engines[0].find_container(NEW)
    assert fact is not None
    assert not lab.record.is_unverified("main", fact.container_id)


def test_a_detached_start_that_died_of_its_first_request_is_given_up(lab: Lab) -> None:
    deployed(lab)
    lab.up(LATER, extent=Extent.DETACH)
    lab.is_answering = False

    def died(_parts: object) -> Readiness:
        raise ContainerDiedError("it died of its first request", Cause("x", "x"), "")

    lab.wait = died
    with pytest.raises(UnhealthyError, match="of its first request"):
        lab.up(LATER)
    check_whole(lab, "1")


def test_a_start_that_fails_brings_everything_back(lab: Lab) -> None:
    deployed(lab)
    lab.wait = dies
    with pytest.raises(UnhealthyError, match="the previous deployment is starting again"):
        lab.up(LATER)
    check_whole(lab, "1")


def test_ctrl_c_while_a_first_start_is_waited_for_lets_it_go_on(lab: Lab) -> None:
    lab.wait = interrupts
    with pytest.raises(KeyboardInterrupt):
        lab.up(OLD)
    check_whole(lab, "1")


def changes_of_a_replacement(lab: Lab) -> int:
    """Return how many changes of containers a whole replacement takes."""
    deployed(lab)
    lab.up(LATER)
    return lab.steps


def test_what_became_of_it_is_said_after_a_second_ctrl_c_too(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed(lab)
    start = Launch.start

    def interrupted(launch: Launch, *arguments: Any, **options: Any) -> None:
        start(launch, *arguments, **options)
        # The next change of a container undoes this one.
        lab.interrupt_at = (lab.steps + 1,)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Launch, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.up(LATER)
    assert "main was not replaced" in capsys.readouterr().err
    check_whole(lab, "1")


@pytest.mark.parametrize("again_after", [0, 2])
def test_ctrl_c_at_any_change_leaves_the_old_or_the_new_one_whole(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    shipped: Library,
    lab: Lab,
    capsys: pytest.CaptureFixture[str],
    again_after: int,
) -> None:
    for at in range(1, changes_of_a_replacement(lab) + 1):
        fresh = deployed(build(monkeypatch, shipped, lab.count))
        # The second Ctrl-C comes while the first one is being undone.
        fresh.interrupt_at = (at, at + again_after)
        with pytest.raises(KeyboardInterrupt):
            fresh.up(LATER)
        fresh.interrupt_at = ()
        text = fresh.running()[0]
        assert text in {"1", "2"}, at
        fate = "main was not replaced" if text == "1" else "main goes on starting"
        assert fate in capsys.readouterr().err, at
        check_whole(fresh, text or "")


@pytest.mark.parametrize("command", ["up", "rollback", "down"])
@pytest.mark.parametrize("answers", [True, False])
def test_a_kill_at_any_change_is_recovered_from(
    monkeypatch: pytest.MonkeyPatch, shipped: Library, lab: Lab, command: str, answers: bool
) -> None:
    for at in range(1, changes_of_a_replacement(lab) + 1):
        fresh = deployed(build(monkeypatch, shipped, lab.count))
        fresh.kill_at = at
        with pytest.raises(Killed):
            fresh.up(LATER)
        fresh.kill_at, fresh.is_answering = 0, answers
        if command == "down":
            fresh.down()
            assert fresh.names() == [[]] * fresh.count, at
            continue
        if command == "up":
            fresh.up(LATER)
            check_whole(fresh, "2")
        else:
            fresh.roll_back()
            check_whole(fresh, fresh.running()[0] or "nothing runs at the head")


def test_a_part_that_fell_back_ends_the_launch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank is held against the plan, not the head alone."""
    deployed(lab)
    last = f"spark-{lab.count}"

    def verify_part(node: Node, _fact: object, facts: object) -> None:
        # The wait has read the head's log, and no other.
        assert (facts is None) is not node.is_here
        if node.name == last:
            raise UnhealthyError(f"{node.name}: attention: planned FLASHINFER, runs TRITON")

    monkeypatch.setattr("sparkdeploy.deploy.wait.verify_rank", verify_part)
    with pytest.raises(UnhealthyError, match=f"{last}: attention: planned FLASHINFER"):
        lab.up(LATER)
    check_whole(lab, "1")


def test_the_ends_of_ranks_are_ordered_by_clocks_as_they_were_seen(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    skews, watch = [], GroupWatch.__init__

    def init(group: GroupWatch, ranks: Any, skews_s: Any) -> None:
        skews.append(skews_s)
        watch(group, ranks, skews_s)

    monkeypatch.setattr(GroupWatch, "__init__", init)
    late = functools.partial(fabric_fact, clock_skew_s=60.0)
    monkeypatch.setattr("tests.fakes.machines.fabric_fact", late)
    lab.up(OLD)
    assert skews == [{f"spark-{number + 1}": 60.0 for number in range(lab.count)}]


def test_the_part_that_died_first_is_named(lab: Lab) -> None:
    deployed(lab)

    def last_one_dies(parts: dict[Node, str]) -> Readiness:
        node, container_id = next(
            item for item in parts.items() if item[0].name == f"spark-{lab.count}"
        )
        node.docker.stop(container_id)
        raise UnhealthyError("no answer within 30m00s")

    lab.wait = last_one_dies
    words = "no answer" if lab.count == 1 else f"spark-{lab.count}: {NEW} died"
    with pytest.raises(UnhealthyError, match=words):
        lab.up(LATER)
    check_whole(lab, "1")


def test_a_model_larger_than_a_node_is_divided_or_refused(lab: Lab) -> None:
    lab.model_bytes = 150 * 2**30
    if lab.count == 1:
        with pytest.raises(NodeError) as caught:
            lab.up(OLD)
        detail = caught.value.detail or ""
        assert "the weights alone take 150.0 GiB" in detail
        assert "a machine with more memory, 2 such machines with --cluster" in detail
        return
    shares = {planned.needs.weights_bytes for planned in lab.up(OLD).plan.nodes}
    assert shares == {-(-150 * 2**30 // lab.count)}
    check_whole(lab, "1")


def test_status_knows_every_part(lab: Lab) -> None:
    deployed(lab)
    row = lab.status()
    assert row.state == "healthy"
    assert [member.state for member in row.members] == ["running"] * (lab.count - 1)
    if lab.count > 1:
        lab.engines[1].facts.clear()
        assert lab.status().state == "broken"


def test_a_head_that_was_not_replaced_yet_is_half_replaced(lab: Lab) -> None:
    if lab.count == 1:
        pytest.skip("there is no worker")
    deployed(lab)
    # The worker's old one is renamed and stopped, the new one is made and started.
    lab.kill_at = 4 * (lab.count - 1) + 1
    with pytest.raises(Killed):
        lab.up(LATER)
    lab.kill_at = 0
    assert lab.running() == ["1"] + ["2"] * (lab.count - 1)
    assert lab.status().state == "half replaced"
    settings = load_settings()
    command = "sparkdeploy up v2 --cluster --name main"
    with node_lock(settings.lock_dir, settings.node_name, command=command, deployment="main"):
        row = lab.status()
    assert row.state == "being replaced"
    assert row.half_done.endswith("waits for it")
    assert "rollback" not in row.half_done


def test_a_node_that_is_needed_no_more_is_left(lab: Lab) -> None:
    if lab.count < 3:
        pytest.skip("nobody is left over")
    deployed(lab).up(LATER, size=2)
    assert lab.running() == ["2", "2", None]
    assert lab.names()[2] == [f"{NEW}-kept-1"]
    assert lab.status().state == "healthy"
    assert lab.roll_back() == "returned"
    check_whole(lab, "1")
    lab.up(LATER, size=1)
    assert lab.running() == ["2", None, None]
    lab.down()
    assert lab.names() == [[]] * 3


def test_a_broken_launch_is_not_kept_and_an_earlier_whole_one_stays(lab: Lab) -> None:
    if lab.count == 1:
        pytest.skip("there is no worker")
    deployed(lab).up(LATER)
    gone = lab.engines[1].find_container(NEW)
    assert gone is not None
    lab.engines[1].remove(gone.container_id)
    assert lab.status().state == "broken"
    lab.up("serve.max_num_seqs=3")
    check_whole(lab, "3")
    assert lab.roll_back() == "returned"
    check_whole(lab, "1")


def test_a_worker_does_not_end_what_another_head_started(lab: Lab) -> None:
    if lab.count == 1:
        pytest.skip("there is no worker")
    deployed(lab)
    lab.engines = [lab.engines[1], lab.engines[0], *lab.engines[2:]]
    with pytest.raises(NodeError, match="which spark-1 heads"):
        lab.down()
    with pytest.raises(SparkdeployError, match="which spark-1 heads"):
        lab.roll_back()
    assert lab.status().state == "worker"


def test_no_label_carries_what_a_variable_holds(lab: Lab) -> None:
    names = ("AWS_SECRET_ACCESS_KEY", "MY_AUTH", "LMCACHE_REMOTE_KEY")
    lab.up(*(f"serve.env.{name}=Pl4nted-s3cret" for name in names))
    found = [dict(fact.labels) for engine in lab.engines for fact in engine.facts.values()]
    assert len(found) == lab.count
    assert "Pl4nted-s3cret" not in repr(found)
    assert all(name in repr(found) for name in names)
    assert {it[labels.USER] for it in found} == {own_name()}


def test_an_idle_stop_is_of_one_machine(lab: Lab) -> None:
    idle = "limits.idle_stop_s=1800"
    if lab.count == 1:
        assert lab.up(idle).changed
        return
    with pytest.raises(NodeError) as caught:
        lab.up(idle)
    assert f"this plan has {lab.count} nodes" in str(caught.value.detail)
    assert lab.names() == [[]] * lab.count
