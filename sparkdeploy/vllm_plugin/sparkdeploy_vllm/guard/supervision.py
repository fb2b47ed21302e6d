"""The guard's loop: one child at a time, watched until it ends."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sparkdeploy_vllm.guard import processes
from sparkdeploy_vllm.guard.health import HealthProbe
from sparkdeploy_vllm.guard.memory import AvailableMemory
from sparkdeploy_vllm.guard.report import report

POLL_S = 0.1
TRIP_MARGIN_BYTES = 1 << 30
EXIT_MEMORY_FLOOR = 86
EXIT_CANNOT_RUN = 127
EXIT_SILENT_END = 1
MAX_NAMED = 8
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED = (*STOP_SIGNALS, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class Orders:
    """What to run and when to intervene.

    `memory_floor_bytes` is what must stay available on the machine (None: not watched);
    `grace_s` is how long the child may take to end after a stop signal.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    memory_floor_bytes: int | None
    grace_s: float
    max_restarts: int


class Supervision:
    """Runs the orders to their end; `run` returns the guard's exit code."""

    def __init__(
        self,
        orders: Orders,
        *,
        memory: AvailableMemory,
        probe: HealthProbe | None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.orders = orders
        self.memory = memory
        self.probe = probe
        self.clock_s = clock_s
        self.offer = processes.OfferToTheKernel()
        self.child = 0
        self.stop_deadline_s: float | None = None
        self.has_been_healthy = False
        self.restarts = 0
        floor = orders.memory_floor_bytes
        self.trip_below_bytes = 0 if floor is None else floor + TRIP_MARGIN_BYTES

    def run(self) -> int:
        """Start the child, and again where the orders allow it, until it has really ended."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        crash_code: int | None = None
        while (stop := _pending_stop()) is None:
            try:
                self.child = processes.start(self.orders.argv, self.orders.env, self.offer)
            except OSError as error:
                report("cannot_run", command=self.orders.argv[0], error=str(error))
                return EXIT_CANNOT_RUN
            code = self._watch()
            if code is None:
                return EXIT_MEMORY_FLOOR
            killed = processes.kill_all(self.child)
            crash_code = self._honest(code)
            if killed.still_there:
                _say_who_is_left(killed.still_there, crash_code)
            if killed.still_there or not self._may_restart():
                return crash_code
            self._announce_restart(crash_code)
        return 128 + stop if crash_code is None else crash_code

    def _watch(self) -> int | None:
        """The child's exit code, or None after a memory trip (everything is dead then)."""
        healthy = False
        while True:
            self._take_signal()
            if self._tripped():
                return None
            status = processes.reap(self.child)
            if status is not None:
                return processes.exit_code(status)
            if self.probe is not None and not healthy:
                healthy = self.probe.tick(self.clock_s())
                self.has_been_healthy |= healthy
            if self.stop_deadline_s is not None and self.clock_s() >= self.stop_deadline_s:
                with suppress(ProcessLookupError):
                    os.killpg(self.child, signal.SIGKILL)
                self.stop_deadline_s = float("inf")
                report("grace_over", grace_s=self.orders.grace_s)

    def _take_signal(self) -> None:
        """Wait one poll interval or until a signal is there, and pass a stop on to the child."""
        info = signal.sigtimedwait(_WATCHED, POLL_S)
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        if self.stop_deadline_s is not None:
            return  # Who stops us says so twice, and some servers take a second word as a kill.
        self.stop_deadline_s = self.clock_s() + self.orders.grace_s
        with suppress(ProcessLookupError):
            os.kill(self.child, info.si_signo)

    def _tripped(self) -> bool:
        if not self.trip_below_bytes:
            return False
        available = self.memory.read_bytes()
        if available is None or available >= self.trip_below_bytes:
            return False
        killed = processes.kill_all(self.child)
        report(
            "memory_floor",
            mem_available_bytes=available,
            floor_bytes=self.orders.memory_floor_bytes,
            trip_below_bytes=self.trip_below_bytes,
            killed_processes=killed.count,
            exit_code=EXIT_MEMORY_FLOOR,
        )
        if killed.still_there:
            _say_who_is_left(killed.still_there, EXIT_MEMORY_FLOOR)
        return True

    def _honest(self, code: int) -> int:
        """The child's code, unless it says what only the guard can know or is no failure.

        VLLM ends with 0 after some engine crashes; without a stop signal that is a failure.
        """
        if code == 0 and self.stop_deadline_s is None:
            report("ended_without_stop", child_exit_code=0, exit_code=EXIT_SILENT_END)
            return EXIT_SILENT_END
        if code == EXIT_MEMORY_FLOOR:
            report("ended_with_the_guards_code", child_exit_code=code, exit_code=EXIT_SILENT_END)
            return EXIT_SILENT_END
        return code

    def _may_restart(self) -> bool:
        # A stop that came while the group was being killed has been passed on to no one yet.
        return (
            self.stop_deadline_s is None
            and self.has_been_healthy
            and self.restarts < self.orders.max_restarts
            and _pending_stop() is None
        )

    def _announce_restart(self, code: int) -> None:
        self.restarts += 1
        facts = {"exit_code": code, "restart": self.restarts}
        report("restart", **facts, max_restarts=self.orders.max_restarts)


def _pending_stop() -> int | None:
    """The stop signal that has come and was not taken yet, taken now."""
    info = signal.sigtimedwait(STOP_SIGNALS, 0)
    return None if info is None else info.si_signo


def _say_who_is_left(pids: Sequence[int], exit_code: int) -> None:
    """Name the processes that outlived SIGKILL: what they hold is free when they are gone.

    Another vLLM beside them would not have that memory, and a Spark that runs out of it freezes.
    """
    report(
        "still_there",
        processes=[processes.description_of(pid) for pid in pids[:MAX_NAMED]],
        count=len(pids),
        waited_s=processes.KILL_TIMEOUT_S,
        exit_code=exit_code,
    )
