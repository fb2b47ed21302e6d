"""Moments in which a launch is undone, held or left, met by kills, Ctrl-C and lost parts."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparkdeploy.checks.report import fail
from sparkdeploy.deploy import up as deploy_up
from sparkdeploy.deploy.up import Extent
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.recipe.load import Library
from tests.fakes.machines import (
    LATER,
    NEW,
    OLD,
    Engine,
    Killed,
    Lab,
    build,
    check_whole,
    deployed,
    dies,
    interrupts,
)

THIRD = "serve.max_num_seqs=3"


@pytest.fixture
def lab_of(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Callable[[int], Lab]:
    return lambda count: build(monkeypatch, shipped, count)


def fell_back(*_: object) -> None:
    raise UnhealthyError("spark-2: planned off, runs mtp 2")


THREE = [(3, 3), (3, 2), (2, 3)]


@pytest.mark.parametrize(
    ("before", "after"),
    [(1, 1), (2, 2), (2, 1), *(pytest.param(*it, marks=pytest.mark.slow) for it in THREE)],
)
def test_a_kill_while_a_launch_is_undone_is_recovered_from(
    lab_of: Callable[[int], Lab], before: int, after: int
) -> None:
    for at in range(1, 40):
        lab = lab_of(max(before, after))
        lab.up(OLD, size=before)
        lab.is_answering = True
        lab.wait, lab.kill_at = interrupts, at
        try:
            lab.up(LATER, size=after)
        except Killed:
            pass
        except KeyboardInterrupt:
            return  # whole before the kill would have come
        lab.kill_at = 0
        lab.roll_back()
        running = [text for text in lab.running() if text is not None]
        assert len(set(running)) == 1, (at, lab.running(), lab.names())
        assert len(running) == (before if running[0] == "1" else after), (at, lab.running())
    pytest.fail("it never ended")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("command", ["up", "rollback"])
def test_ctrl_c_while_a_start_is_given_up_leaves_one_of_both_whole(
    lab_of: Callable[[int], Lab], count: int, command: str
) -> None:
    for at in range(1, 12):
        lab = deployed(lab_of(count))
        lab.up(LATER, extent=Extent.DETACH)
        lab.is_answering, lab.interrupt_at = False, (at,)
        # With a later moment it comes to its end before.
        with contextlib.suppress(KeyboardInterrupt):
            lab.up(THIRD) if command == "up" else lab.roll_back()
        lab.interrupt_at = ()
        check_whole(lab, lab.running()[0] or f"nothing runs after {at}")


@pytest.mark.parametrize("end", ["stop", "remove", "cut off"])
def test_a_detached_start_that_lost_a_worker_is_not_finished(
    lab_of: Callable[[int], Lab], end: str
) -> None:
    lab = deployed(lab_of(2))
    lab.up(LATER, extent=Extent.DETACH)
    worker = lab.engines[1]
    fact = worker.find_container(NEW)
    assert fact is not None
    if end == "cut off":
        lab.gone = {"spark-2"}
        with pytest.raises(NodeError, match="spark-2"):
            lab.roll_back()
        assert lab.names()[0] == [NEW, f"{NEW}-replaced"]
        lab.gone = set()
        assert lab.roll_back() == "finished"
        check_whole(lab, "2")
        return
    getattr(worker, end)(fact.container_id)
    assert lab.roll_back() == "reverted"
    check_whole(lab, "1")


@pytest.mark.parametrize("count", [1, 2])
def test_a_detached_first_start_is_held_to_the_recipe(
    lab_of: Callable[[int], Lab], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    lab = lab_of(count)
    lab.up(OLD, extent=Extent.DETACH)
    lab.is_answering = True
    monkeypatch.setattr("sparkdeploy.deploy.expectation.verify_rank", fell_back)
    monkeypatch.setattr("sparkdeploy.deploy.wait.verify_rank", fell_back)
    with pytest.raises(UnhealthyError, match="planned off, runs mtp 2"):
        lab.up(OLD)
    assert lab.running() == [None] * count


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("question", ["find_container", "own_containers"])
def test_ctrl_c_at_any_question_leaves_the_old_or_the_new_one_whole(
    lab_of: Callable[[int], Lab], monkeypatch: pytest.MonkeyPatch, count: int, question: str
) -> None:
    ask = getattr(Engine, question)
    for at in range(1, 60):
        lab = deployed(lab_of(count))
        asked: list[Engine] = []

        def interrupted(
            engine: Engine, *about: str, at: int = at, asked: list[Engine] = asked
        ) -> object:
            # A watch asks from threads of its own.
            if threading.current_thread() is threading.main_thread():
                asked.append(engine)
                if len(asked) == at:
                    signal.raise_signal(signal.SIGINT)
            return ask(engine, *about)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(Engine, question, interrupted)
            lab.up(LATER)
        check_whole(lab, lab.running()[0] or f"nothing runs after {at}")
        if len(asked) < at:
            return
    pytest.fail("it never ended")


def test_a_worker_that_died_is_kept_with_its_head_that_was_stopped(
    lab_of: Callable[[int], Lab],
) -> None:
    lab = deployed(lab_of(2))
    fact = lab.engines[1].find_container(NEW)
    assert fact is not None
    lab.engines[1].dies(fact.container_id)
    lab.stop()
    lab.up(LATER)
    assert lab.roll_back() == "returned"
    check_whole(lab, "1")


def test_what_a_download_brought_to_light_is_refused_too(
    lab_of: Callable[[int], Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = lab_of(1)

    def decided_again(plan: Any, *_: Any) -> Any:
        return replace(plan, findings=(fail("machine.memory", "it is too large", "none"),))

    monkeypatch.setattr(deploy_up, "bring_models", lambda *_, **_options: True)
    monkeypatch.setattr(deploy_up, "decide_again", decided_again)
    with pytest.raises(NodeError, match="cannot start"):
        lab.up(OLD)
    assert lab.names() == [[]] * lab.count


@pytest.mark.parametrize("is_good", [True, False])
def test_the_head_decides_first_and_the_others_follow(
    lab_of: Callable[[int], Lab], monkeypatch: pytest.MonkeyPatch, *, is_good: bool
) -> None:
    lab, changed = deployed(lab_of(2)), []
    for number, engine in enumerate(lab.engines):
        monkeypatch.setattr(engine, "_step", lambda number=number: changed.append(number))
    answer = lab.wait

    def waits(parts: Any) -> Any:
        changed.clear()
        return answer(parts) if is_good else dies(parts)

    lab.wait = waits
    with contextlib.nullcontext() if is_good else pytest.raises(UnhealthyError):
        lab.up(LATER)
    assert set(changed) == {0, 1}
    assert changed == sorted(changed)
