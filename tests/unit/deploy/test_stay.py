"""What `up --stay` does when a part dies, is stopped, or makes room, on one and more machines."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sparkdeploy.deploy import lifecycle
from sparkdeploy.deploy.stay import BOOT_S, Ends, notify_systemd, start_at_boot, stay_with
from sparkdeploy.errors import (
    BuildError,
    CheckpointError,
    ConsentNeededError,
    NodeError,
    RecipeError,
    SparkdeployError,
    UnhealthyError,
    UsageError,
)
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.lock import attendant_of, watching
from sparkdeploy.node.node import node_behind
from sparkdeploy.recipe.load import Library
from sparkdeploy.settings import load_settings
from tests.fakes.containers import container
from tests.fakes.machines import NEW, Lab, build, interrupts

OLD, LATER = "serve.max_num_seqs=1", "serve.max_num_seqs=2"


@pytest.fixture(params=[1, 2, pytest.param(3, marks=pytest.mark.slow)])
def empty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    return build(monkeypatch, shipped, request.param)


@pytest.fixture
def lab(empty: Lab) -> Lab:
    empty.up(OLD)
    return empty


def stays(*happens: Callable[[], object]) -> int:
    """Stay while these happen, one between two looks; return how many of them it saw."""
    left = list(happens)
    seen = 0

    def sleep(_about: object) -> None:
        nonlocal seen
        assert left, "it goes on for ever"
        left.pop(0)()
        seen += 1

    class Looks:
        wait = staticmethod(sleep)

    stay_with("main", sleep, cast("type[Ends]", Looks))
    return seen


@pytest.mark.parametrize("late", [RecipeError("x"), NodeError("x"), CheckpointError("x")])
def test_what_is_late_at_boot_is_waited_for(
    late: SparkdeployError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(uptime_s: float, *errors: SparkdeployError) -> int:
        left, pauses = list(errors), 0

        def start() -> None:
            if left:
                raise left.pop(0)

        def sleep(_s: float) -> None:
            nonlocal pauses
            pauses += 1

        start_at_boot(start, sleep, lambda: uptime_s)
        return pauses

    monkeypatch.setenv("NOTIFY_SOCKET", "/run/none")
    assert started(60, late, late) == 2
    with pytest.raises(type(late)):
        started(BOOT_S + 1, late)
    for final in (UnhealthyError("x"), ConsentNeededError("x"), UsageError("x"), BuildError("x")):
        with pytest.raises(type(final)):
            started(60, final)
    monkeypatch.delenv("NOTIFY_SOCKET")
    with pytest.raises(type(late)):
        started(60, late)


def part(lab: Lab, number: int) -> str:
    fact = lab.engines[number].find_container(NEW)
    assert fact is not None
    return fact.container_id


def nothing() -> None:
    """A while passes."""


def test_it_ends_with_what_was_stopped_or_removed(lab: Lab) -> None:
    assert stays(nothing, nothing, lab.stop) == 3
    assert stays() == 0
    lab.up(LATER)
    assert stays(lab.down) == 1


def test_any_part_that_dies_ends_them_all_and_the_next_up_starts_all(lab: Lab) -> None:
    for number in range(lab.count):
        hung = part(lab, number)
        with pytest.raises(UnhealthyError, match="87") as caught:
            stays(lambda: lab.engines[number].dies(hung, 87))  # noqa: B023
        assert caught.value.exit_code == 7
        assert lab.running() == [None] * lab.count
        if lab.count > 1:
            assert caught.value.message.startswith(f"spark-{number + 1}: ")
        lab.up(OLD)
        assert lab.running() == ["1"] * lab.count


def test_after_a_trip_of_the_memory_guard_nothing_starts_it_again(lab: Lab) -> None:
    with pytest.raises(UnhealthyError) as caught:
        stays(lambda: lab.engines[0].dies(part(lab, 0), 86))
    assert caught.value.exit_code == 86


def test_a_node_that_does_not_answer_ends_nothing(lab: Lab) -> None:
    engine = lab.engines[-1]

    def cut() -> None:
        engine.breaks_with = NodeError("nobody answers")

    def back() -> None:
        engine.breaks_with = None

    assert stays(cut, nothing, nothing, back, lab.stop) == 5


def test_what_somebody_starts_again_is_watched_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, and with some parts started already: until nobody waits for it any more."""
    monkeypatch.setattr(lifecycle, "is_port_free", lambda _port: True)
    settings = load_settings()
    waits = contextlib.ExitStack()

    def stop() -> None:
        waits.enter_context(
            watching(settings.lock_dir, settings.node_name, "main", command="restart main")
        )
        lab.stop()

    def start_first_part() -> None:
        lab.engines[0].start(part(lab, 0))

    def start_all() -> None:
        lab.start()
        waits.close()

    happens = (stop, nothing, start_first_part, nothing, start_all, nothing, lab.stop)
    assert stays(*happens) == len(happens)


def test_a_restart_waits_for_its_start_from_its_stop_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings()
    told = []

    def start(name: str, *, drop_page_cache: bool) -> None:
        assert not drop_page_cache
        assert lab.running() == [None] * lab.count
        attendant = attendant_of(settings.lock_dir, settings.node_name, name)
        told.append(attendant.command if attendant is not None else "")

    monkeypatch.setattr(lifecycle, "start", start)
    lifecycle.restart("main")
    assert told == ["sparkdeploy restart main"]


def test_an_interrupt_ends_a_first_start_that_somebody_was_to_stay_with(
    empty: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """`systemctl stop` of a unit that is not up yet is a signal, and no `stop`."""
    empty.wait = interrupts
    with pytest.raises(KeyboardInterrupt):
        empty.up(OLD, is_unit=True)
    assert empty.running() == [None] * empty.count
    assert empty.status().state == "stopped"
    assert "main was stopped before it answered" in capsys.readouterr().err


def test_the_first_of_several_ends_is_enough() -> None:
    over, ended = threading.Event(), []

    def wait(key: str) -> None:
        if key == "slow":
            over.wait(20)
        ended.append(key)

    node = node_behind("here", cast("DockerHost", SimpleNamespace(wait=wait)))
    Ends().wait([(node, container(name)) for name in ("slow", "fast")])
    assert ended == ["fast"]
    over.set()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told_when_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    notify_systemd("READY=1")
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listens:
        listens.bind(f"\0{path}" if is_abstract else path)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{path}" if is_abstract else path)
        notify_systemd("READY=1")
        assert listens.recv(64) == b"READY=1"
