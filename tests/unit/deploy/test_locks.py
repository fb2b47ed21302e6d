"""What the node's lock is held for, who is named by it, and signals while containers change."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sparkdeploy.deploy import lifecycle, lock, removal
from sparkdeploy.deploy.deployments import Inspected
from sparkdeploy.deploy.lock import defer_signals, deploy_lock
from sparkdeploy.deploy.prepare import build_stages, stage_lock
from sparkdeploy.errors import NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.node.lock import attendant_of, lock_holder, node_lock
from sparkdeploy.node.node import Node, Nodes
from sparkdeploy.recipe.load import Library
from sparkdeploy.settings import SHARED_LOCK_DIR, Settings, load_settings
from tests.fakes.machines import LATER, OLD, Lab, build, deployed, dies, interrupts
from tests.fakes.plans import model_fact


@pytest.fixture(params=[1, 2])
def lab(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    return build(monkeypatch, shipped, request.param)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_an_inner_block_is_raised_behind_the_outer_one(number: signal.Signals) -> None:
    done, before = [], signal.signal(number, signal.default_int_handler)

    def change() -> None:
        with defer_signals():
            with defer_signals():
                signal.raise_signal(number)
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        change()
    signal.signal(number, before)
    assert done == ["inner", "outer"]


def test_a_signal_is_not_lost_when_the_block_fails_and_the_failure_is_its_context() -> None:
    before = signal.getsignal(signal.SIGINT)

    def fail() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            raise UnhealthyError("it died")

    with pytest.raises(KeyboardInterrupt) as raised:
        fail()
    assert isinstance(raised.value.__context__, UnhealthyError)
    assert signal.getsignal(signal.SIGINT) is before


def test_handlers_are_as_before_when_nothing_came() -> None:
    before = signal.getsignal(signal.SIGINT)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with defer_signals(), defer_signals():
            assert signal.getsignal(signal.SIGINT) is not before
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, ignored)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_defers_nothing() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with defer_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_nobody_is_locked_out_while_a_question_waits(lab: Lab) -> None:
    settings = load_settings()
    deployed(lab)
    seen = []

    def asked(_question: str) -> bool:
        with deploy_lock(settings, "stop other", "other"):
            seen.append(lock_holder(settings.lock_dir, settings.node_name))
        return True

    lab.consent = asked
    lab.up(LATER)
    assert len(seen) == 1
    assert lab.running() == ["2"] * lab.count


def test_no_container_is_changed_by_any_command_without_the_lock(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, seen = load_settings(), []
    monkeypatch.setattr(lifecycle, "is_port_free", lambda _port: True)

    def step() -> None:
        holder = lock_holder(settings.lock_dir, settings.node_name)
        seen.append(holder.deployment if holder is not None else f"free: {command}")

    monkeypatch.setattr(lab, "step", step)
    commands: dict[str, Callable[[], object]] = {
        "up": lambda: deployed(lab),
        "replace": lambda: lab.up(LATER),
        "rollback": lab.roll_back,
        "stop": lab.stop,
        "start": lab.start,
        "up that dies": lambda: lab.up("serve.max_num_seqs=3"),
        "up that is interrupted": lambda: lab.up("serve.max_num_seqs=4"),
        "down": lab.down,
    }
    waits = {"up that dies": dies, "up that is interrupted": interrupts}
    for command, run in commands.items():
        before = len(seen)
        monkeypatch.setattr(lab, "wait", waits.get(command, lab.wait))
        fails = pytest.raises((UnhealthyError, KeyboardInterrupt))
        with fails if command in waits else contextlib.nullcontext():
            run()
        assert len(seen) > before, command
    assert set(seen) == {"main"}


def test_two_heads_lock_the_same_nodes_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def note(path: Path) -> contextlib.AbstractContextManager[None]:
        assert path.parent == Path(SHARED_LOCK_DIR)
        taken.append(path.stem)
        return contextlib.nullcontext()

    monkeypatch.setattr(lock, "announced_lock", lambda folder, name, _command: note(folder / name))
    monkeypatch.setattr(lock, "locked_there", lambda _node, path, _wait_s: note(path))
    for names in itertools.permutations(("b", "a", "c")):
        nodes = [SimpleNamespace(name=name, is_here=name == names[0]) for name in names]
        with lock.ranks_lock(cast("list[Node]", nodes), "up v2"):
            assert [name.partition("-")[0] for name in taken] == ["a", "b", "c"]
        taken.clear()


def test_what_changed_behind_the_plan_is_refused_by_name(lab: Lab) -> None:
    deployed(lab)

    def asked(_question: str) -> bool:
        lab.stop()
        return True

    lab.consent = asked
    with pytest.raises(NodeError, match="another command changed main"):
        lab.up(LATER)
    assert lab.running() == [None] * lab.count


def test_a_lock_that_stays_taken_does_not_hide_what_a_container_died_of(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(lab)
    settings = load_settings()
    monkeypatch.setattr("sparkdeploy.deploy.lock.LOCK_WAIT_S", 0.0)
    taken = node_lock(settings.lock_dir, settings.node_name, command="sparkdeploy clean")

    def dies_while_locked(parts: object) -> object:
        taken.__enter__()
        return dies(parts)

    lab.wait = dies_while_locked
    with pytest.raises(UnhealthyError, match=r"it died.*not back yet"):
        lab.up(LATER)
    taken.__exit__(None, None, None)


@pytest.mark.parametrize(("deployment", "is_named"), [("v2", False), ("other", True)])
def test_who_changes_a_deployment_is_told_by_the_note_and_not_by_words(
    deployment: str, is_named: bool
) -> None:
    settings = load_settings()
    with deploy_lock(settings, "up v2 --name other", "other"):
        found = attendant_of(settings.lock_dir, settings.node_name, deployment)
    assert (found is not None) is is_named


def test_what_a_running_up_has_named_is_refused_to_those_that_remove(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, seen, model = load_settings(), [], model_fact()
    assert model.overlay is not None
    folders = {str(model.root), str(model.overlay.path)}

    def prepare(plan: object, _ranks: object, _settings: object) -> None:
        named = folders | {step.stage.tag for step in lab.planned[-1].images}
        seen.append(set(lock.users_of(named, settings)))
        assert seen[-1] == named
        for name in named:
            with pytest.raises(NodeError, match=r"is used by `sparkdeploy up v2"):
                lock.refuse_used([name], settings)

    monkeypatch.setattr("sparkdeploy.deploy.prepare.prepare", prepare)
    lab.up(OLD)
    assert len(seen) == 1
    assert lock.users_of(seen[0], settings) == {}


def test_a_stage_is_built_by_one_command_at_a_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, settings = lab.stages[0], load_settings()
    monkeypatch.setattr("sparkdeploy.deploy.prepare.BUILD_WAIT_S", 0.0)
    with stage_lock(stage, settings):
        with pytest.raises(NodeError, match="is being changed by"):
            build_stages([stage], lab.engines[0].host, settings)
        with stage_lock(lab.stages[1], settings):
            pass
    # It is there by now, and nothing can be built on a fake.
    build_stages([stage], lab.engines[0].host, settings)


def test_down_all_goes_on_behind_one_that_cannot_be_removed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(lab)
    lab.record.note("broken", ("spark-9",))
    tried = []
    real = removal.remove_deployment

    def remove(
        nodes: Nodes, name: str, found: Inspected | None, settings: Settings
    ) -> tuple[str, ...]:
        tried.append(name)
        if len(tried) == 1:
            raise SparkdeployError(f"{name} cannot be removed")
        return real(nodes, name, found, settings)

    monkeypatch.setattr(removal, "remove_deployment", remove)
    _, errors = removal.down_all()
    assert tried == ["main", "broken"]
    assert [error.message for error in errors] == ["main cannot be removed"]
