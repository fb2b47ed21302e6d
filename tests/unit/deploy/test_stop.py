"""`stop`, `start` and `restart` over one, two and three machines, interrupted and killed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sparkdeploy.deploy import launch, lifecycle
from sparkdeploy.deploy.serving import stopped_because
from sparkdeploy.deploy.wait import Watch
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.monitor.status_row import status_lines
from sparkdeploy.node.container import EXIT_IDLE
from sparkdeploy.recipe.load import Library
from sparkdeploy.server.health import Readiness
from sparkdeploy.terminal.style import plain_text
from sparkdeploy.terminal.tables import laid_out
from tests.fakes.containers import container
from tests.fakes.machines import LATER, NEW, OLD, READY, Killed, Lab, build, dies, launches


@pytest.fixture(params=[1, 2, pytest.param(3, marks=pytest.mark.slow)])
def lab(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    monkeypatch.setattr(lifecycle, "is_port_free", lambda _port: True)
    lab = build(monkeypatch, shipped, request.param)
    lab.up(OLD)
    return lab


def ids(lab: Lab) -> list[str]:
    """The container of each machine under the deployment's name."""
    found = (engine.find_container(NEW) for engine in lab.engines)
    return [fact.container_id if fact is not None else "" for fact in found]


def check_serves(lab: Lab, text: str) -> None:
    assert lab.running() == [text] * lab.count
    assert len(launches(lab)) == 1
    assert lab.record.is_unverified("main", ids(lab)[0]) is False


def told(lab: Lab) -> str:
    return "\n".join(plain_text(line) for line in laid_out(status_lines([lab.status()]), None))


def test_what_was_stopped_starts_again_as_the_very_same(lab: Lab) -> None:
    before, waits = ids(lab), lab.waits
    others = (f"spark-{number}:{NEW}" for number in range(2, lab.count + 1))
    assert lab.stop() == (NEW, *others)
    assert lab.running() == [None] * lab.count
    started = lab.start()
    assert (started.changed, ids(lab), lab.waits) == (True, before, waits + 1)
    assert started.base_url == "http://127.0.0.1:8000"
    check_serves(lab, "1")


def test_status_says_since_when_and_how_to_start(lab: Lab) -> None:
    lab.stop()
    row = lab.status()
    assert row.state == "stopped"
    assert row.stopped_at
    assert {member.state for member in row.members} <= {"stopped"}
    assert "ago): `sparkdeploy start main` starts it again" in told(lab)
    assert "shows why" not in told(lab)


def test_a_start_that_fails_stays_stopped(lab: Lab) -> None:
    before = ids(lab)
    lab.stop()
    lab.wait = dies
    with pytest.raises(UnhealthyError, match=r"^it died; evidence"):
        lab.start()
    assert (ids(lab), lab.running()) == (before, [None] * lab.count)
    lab.wait = lab._answer
    assert lab.start().changed
    check_serves(lab, "1")


def test_without_room_nothing_is_started(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.stop()

    def refuses(*_: Any, **_options: Any) -> None:
        raise NodeError("memory: 3 GiB needed")

    monkeypatch.setattr(launch, "require_memory", refuses)
    with pytest.raises(NodeError, match="3 GiB needed"):
        lab.start()
    assert lab.status().state == "stopped"


def test_stop_gives_a_replacement_up_and_stops_what_served_before(lab: Lab) -> None:
    from sparkdeploy.deploy.up import Extent

    before = ids(lab)
    lab.is_answering = False
    lab.up(LATER, extent=Extent.DETACH)
    lab.stop()
    assert (ids(lab), lab.running()) == (before, [None] * lab.count)
    assert lab.names() == [[NEW]] * lab.count


def test_stop_while_an_up_waits_leaves_what_it_started(lab: Lab) -> None:
    lab.down()

    def stopped_meanwhile(_parts: Any) -> Readiness:
        lab.stop()
        return dies(_parts)

    lab.wait = stopped_meanwhile
    with pytest.raises(UnhealthyError, match="stopped or replaced by another command"):
        lab.up(OLD)
    assert lab.status().state == "stopped"
    lab.wait = lab._answer
    lab.start()
    check_serves(lab, "1")


def test_an_answer_of_what_another_command_replaced_meanwhile_does_not_count(lab: Lab) -> None:
    def replaced_meanwhile(parts: Any) -> Readiness:
        lab.wait = lab._answer
        lab.up(OLD)
        return lab._answer(parts)

    lab.wait = replaced_meanwhile
    with pytest.raises(UnhealthyError, match="stopped or replaced by another command"):
        lab.up(LATER)
    check_serves(lab, "1")


@pytest.mark.parametrize("at", range(1, 7))
def test_a_kill_at_any_change_is_repaired(lab: Lab, at: int) -> None:
    """Of `stop`, `start` and `up` of another recipe on a stopped one."""
    for doing in (lab.stop, lab.start, lab.stop, lambda: lab.up(LATER)):
        lab.kill_at = at
        try:
            doing()
        except Killed:
            lab.is_answering = False
        lab.kill_at = 0
    lab.stop() if any(ids(lab)) else None
    assert lab.running() == [None] * lab.count
    lab.up(LATER)
    check_serves(lab, "2")


def test_a_part_that_cannot_be_reached_is_named(
    monkeypatch: pytest.MonkeyPatch, shipped: Library
) -> None:
    lab = build(monkeypatch, shipped, 2)
    lab.up(OLD)
    lab.gone = {"spark-2"}
    with pytest.raises(NodeError, match="its ranks may go on where nobody answers: spark-2"):
        lab.stop()
    assert lab.running() == [None, "1"]
    lab.gone = set()
    lab.stop()
    assert lab.running() == [None, None]


@pytest.mark.parametrize(("idle_s", "words"), [(7200, "2h"), (5400, "90m"), (90, "90s")])
def test_an_idle_stop_is_told_in_the_largest_whole_unit(idle_s: int, words: str) -> None:
    values = json.dumps({"limits": {"idle_stop_s": idle_s}})
    fact = replace(container(NEW, "exited", recipe_values=values), exit_code=EXIT_IDLE)
    assert stopped_because(fact) == f"idle for {words}"


def test_a_start_is_waited_for_as_long_as_the_first_one(
    monkeypatch: pytest.MonkeyPatch, shipped: Library
) -> None:
    monkeypatch.setattr(lifecycle, "is_port_free", lambda _port: True)
    lab, waits = build(monkeypatch, shipped, 1), []

    def wait_for_head(watch: Watch) -> Readiness:
        waits.append((watch.deadline_s, watch.key))
        return READY

    monkeypatch.setattr(Watch, "_wait_for_head", wait_for_head)
    made = lab.up(OLD, "limits.startup_timeout_s=77")
    lab.stop()
    lab.start()
    assert waits == [(77, made.plan.timing_key)] * 2


def test_a_port_that_somebody_has_taken_is_said(
    monkeypatch: pytest.MonkeyPatch, shipped: Library
) -> None:
    lab = build(monkeypatch, shipped, 1)
    lab.up(OLD)
    lab.stop()
    monkeypatch.setattr(lifecycle, "is_port_free", lambda _port: False)
    with pytest.raises(NodeError, match="port 8000 of main is in use by"):
        lab.start()
