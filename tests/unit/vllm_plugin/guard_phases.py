"""Runs the guard's loop once for every phase and signal: one process each, real children.

python guard_phases.py FOLDER: prints {"phase SIGNAL": [exit code, starts, [events]]} as JSON. The
signal is sent from within the loop, at the seam that the phase names, so no phase needs a sleep.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sparkdeploy_vllm.guard import processes, supervision
from sparkdeploy_vllm.guard.asking import Reply
from sparkdeploy_vllm.guard.processes import STOP_SIGNALS
from sparkdeploy_vllm.guard.supervision import Orders, Supervision

GIB = 1 << 30
NO_SUCH_PID = 1 << 30
seams: Any = supervision
SLEEPS = "exec sleep 60"
CRASHES = "while [ ! -e ticked ]; do sleep 0.01; done; exit 7"
ENDS_WITH_0 = "exit 0"
ENDS_WELL = "trap 'exit 0' TERM INT HUP; touch ready; while :; do sleep 0.01; done"
IGNORES = "trap '' TERM INT HUP; touch ready; exec sleep 60"
COUNTS = (
    "trap 'n=$((n+1)); touch heard' TERM INT HUP; touch ready;"
    "while [ ! -e twice ]; do sleep 0.01; done; sleep 0.1; exit $((n+20))"
)


class World:
    """One guard's surroundings: a probe, a memory and a clock hand, all in the test's hand."""

    def __init__(self, number: int) -> None:
        """A signal to send."""
        self.number = number
        self.is_healthy = False
        self.available_bytes = 64 * GIB
        self.at_tick: Callable[[], None] = lambda: None
        self.said: list[str] = []
        self.starts = 0

    def count(self) -> None:
        """One child more."""
        self.starts += 1

    def send(self) -> None:
        """The stop signal, from outside."""
        os.kill(os.getpid(), self.number)

    def tick(self, now_s: float) -> Reply | None:
        """The probe's part: called once a turn until it has said yes."""
        self.at_tick()
        Path("ticked").touch()
        return Reply(b"200", b"") if self.is_healthy else None

    def read_bytes(self) -> int:
        """The memory's part."""
        return self.available_bytes

    def report(self, event: str, **facts: object) -> None:
        """Remember what was said."""
        self.said.append(event)


Phase = Callable[[World], str]
"""Prepares the world for the phase; returns the child's script."""


def once(action: Callable[[], None], when: Callable[[], bool] = lambda: True) -> Callable[[], None]:
    """Act the first time that the condition holds."""
    done: list[bool] = []

    def act() -> None:
        if not done and when():
            done.append(True)
            action()

    return act


def after(name: str, action: Callable[[], None]) -> None:
    """Do something right after a function of `processes`."""
    real = getattr(processes, name)

    def wrapped(*args: object) -> object:
        result = real(*args)
        action()
        return result

    setattr(processes, name, wrapped)


def before_the_start(world: World) -> str:
    world.send()
    return SLEEPS


def while_starting(world: World) -> str:
    after("start", world.send)
    return SLEEPS


def running_not_healthy(world: World) -> str:
    world.at_tick = once(world.send)
    return SLEEPS


def running_healthy(world: World) -> str:
    world.is_healthy = True
    world.at_tick = once(world.send)
    return SLEEPS


def running_and_ends_well(world: World) -> str:
    world.at_tick = once(world.send, Path("ready").exists)
    return ENDS_WELL


def running_and_ignored(world: World) -> str:
    world.at_tick = once(world.send, Path("ready").exists)
    return IGNORES


def again_in_grace(world: World) -> str:
    first = once(world.send, Path("ready").exists)

    def send_again() -> None:
        world.send()
        Path("twice").touch()

    second = once(send_again, Path("heard").exists)

    def tick() -> None:
        first()
        second()

    world.at_tick = tick
    return COUNTS


def while_the_group_is_killed(world: World) -> str:
    world.is_healthy = True
    after("kill_all", once(world.send))
    return CRASHES


def while_the_group_is_killed_after_an_end_with_0(world: World) -> str:
    after("kill_all", once(world.send))
    return ENDS_WITH_0


def between_death_and_restart(world: World) -> str:
    world.is_healthy = True
    said = world.report

    def report(event: str, **facts: object) -> None:
        said(event, **facts)
        if event == "restart":
            world.send()

    seams.report = report
    return CRASHES


def during_a_memory_trip(world: World) -> str:
    world.is_healthy = True
    world.at_tick = lambda: setattr(world, "available_bytes", 0)
    after("kill_all", once(world.send))
    return SLEEPS


def in_the_last_exit(world: World) -> str:
    return CRASHES


def no_signal(world: World) -> str:
    world.is_healthy = True
    return CRASHES


def no_signal_and_idle_and_the_stop_is_ignored(world: World) -> str:
    world.is_healthy = True
    return IGNORES


def no_signal_and_one_outlives_sigkill(world: World) -> str:
    world.is_healthy = True
    processes.KILL_TIMEOUT_S = 0.05
    real = processes.descendants
    processes.descendants = lambda ancestor: [*real(ancestor), NO_SUCH_PID]
    return CRASHES


def no_signal_and_one_outlives_a_memory_trip(world: World) -> str:
    processes.KILL_TIMEOUT_S = 0.05
    real = processes.descendants
    processes.descendants = lambda ancestor: [*real(ancestor), NO_SUCH_PID]
    world.at_tick = lambda: setattr(world, "available_bytes", 0)
    return SLEEPS


PHASES = (
    before_the_start,
    while_starting,
    running_not_healthy,
    running_healthy,
    running_and_ends_well,
    running_and_ignored,
    again_in_grace,
    while_the_group_is_killed,
    while_the_group_is_killed_after_an_end_with_0,
    between_death_and_restart,
    during_a_memory_trip,
    in_the_last_exit,
)
WITHOUT_SIGNAL = (
    no_signal,
    no_signal_and_idle_and_the_stop_is_ignored,
    no_signal_and_one_outlives_sigkill,
    no_signal_and_one_outlives_a_memory_trip,
)


def guard(phase: Phase, number: int) -> int:
    """Be the guard, in this process; return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # what main does first
    processes.become_subreaper()
    supervision.POLL_S = 0.01
    world = World(number)
    seams.report = world.report
    after("start", world.count)
    script = phase(world)
    is_idle = phase is no_signal_and_idle_and_the_stop_is_ignored
    idle: Any = SimpleNamespace(tick=lambda _now_s: 9.0 if Path("ready").exists() else None)
    orders = Orders(
        argv=("sh", "-c", script),
        env=dict(os.environ),
        memory_floor_bytes=GIB,
        grace_s=0.2 if is_idle or phase is running_and_ignored else 20.0,
        max_restarts=2,
        idle=(lambda: idle) if is_idle else None,
    )
    surroundings: Any = world
    quiet = supervision.KernelLog(Path("/dev/null"))
    code = Supervision(orders, memory=surroundings, kernel_log=quiet, probe=surroundings).run()
    if phase is in_the_last_exit:
        world.send()
    Path("seen").write_text(json.dumps([world.starts, world.said]), encoding="utf-8")
    return code


def outcome(phase: Phase, number: int, folder: Path) -> list[object]:
    """Exit code, starts and events of a guard in a process of its own; 142 when it never ends."""
    folder.mkdir()
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        signal.alarm(10)
        os._exit(guard(phase, number))
    _, status = os.waitpid(pid, 0)
    seen = folder / "seen"
    starts, said = json.loads(seen.read_text()) if seen.exists() else (0, [])
    return [processes.exit_code(status), starts, said]


def main(folder: Path) -> None:
    """Print the table."""
    cases: list[tuple[Phase, int]]
    cases = [(phase, number) for phase in PHASES for number in STOP_SIGNALS]
    cases += [(phase, 0) for phase in WITHOUT_SIGNAL]
    table = {}
    for phase, number in cases:
        name = f"{phase.__name__} {signal.Signals(number).name if number else '-'}"
        table[name] = outcome(phase, number, folder / name.replace(" ", "-"))
    print(json.dumps(table))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
