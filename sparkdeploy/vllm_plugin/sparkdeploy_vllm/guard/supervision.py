"""The guard's arguments and its loop: one child at a time, watched until it ends.

Memory is read without allocating any, and the server is asked without waiting for its answer.
"""

import argparse
import gc
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparkdeploy_vllm.guard import evidence, processes
from sparkdeploy_vllm.guard.asking import STATUS_BYTES, PollingRequest, question
from sparkdeploy_vllm.guard.processes import STOP_SIGNALS
from sparkdeploy_vllm.guard.report import line_of, report, write_at_once
from sparkdeploy_vllm.guard.stalling import IdleWatch, StallWatch, metrics_request, stall_watch
from sparkdeploy_vllm.node_variables import belongs_to_node

KEY_VARIABLE = "VLLM_API_KEY"
EXIT_USAGE = 2
POLL_S = 0.1
TRIP_MARGIN_BYTES = 1 << 30
EXIT_MEMORY_FLOOR = 86
EXIT_STALLED = 87
EXIT_IDLE = 88
GUARDS_OWN = (EXIT_MEMORY_FLOOR, EXIT_STALLED, EXIT_IDLE)
EXIT_CANNOT_RUN = 127
EXIT_KILLED = 128 + signal.SIGKILL
EXIT_TOLD_TO_STOP = 128 + signal.SIGTERM
EXIT_SILENT_END = 1
MAX_NAMED = 8
_WATCHED = (*STOP_SIGNALS, signal.SIGCHLD)
_KEY = b"MemAvailable:"
_DRIVER, _NO_MEMORY = b"NVRM:", b"NV_ERR_NO_MEMORY"
KERNEL_LOG = Path("/dev/kmsg")
MOST_RECORDS = 64
"""Of the kernel's log, in one look."""
_KIB = 1024


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        kept = frozenset(options.node_env.split(","))
        orders = _orders(options, _child_env(os.environ, options.key_file, kept))
        memory = AvailableMemory(options.meminfo)
        kernel_log = KernelLog(options.kernel_log)
        probe = question(options.health_url) if options.health_url else None
        if probe is not None:
            probe.most_bytes = STATUS_BYTES
    except (OSError, ValueError) as error:
        report("refused", error=str(error), exit_code=EXIT_USAGE)
        return EXIT_USAGE
    processes.become_subreaper()
    evidence.leave_no_core()
    supervision = Supervision(orders, memory=memory, kernel_log=kernel_log, probe=probe)
    processes.shut_out_others()
    if orders.memory_floor_bytes is not None:
        _make_ready(memory)
    return supervision.run()


class AvailableMemory:
    """MemAvailable of a meminfo file that is opened once and read into one buffer."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = bytearray(4096)
        self._buffers = [self._buffer]

    def read_bytes(self) -> int | None:
        """Bytes available now; None when the file does not say (then nothing is decided on it)."""
        try:
            length = os.preadv(self._descriptor, self._buffers, 0)
        except OSError:
            return None
        start = self._buffer.find(_KEY, 0, length)
        if start < 0:
            return None
        kib, position = 0, start + len(_KEY)
        while position < length and self._buffer[position] != ord("\n"):
            digit = self._buffer[position] - ord("0")
            if 0 <= digit <= 9:
                kib = kib * 10 + digit
            position += 1
        return kib * _KIB


class KernelLog:
    """What the kernel logs from now on; nothing where this container may not read it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self._buffers = [bytearray(8192)]
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def tells_of_no_memory(self) -> bool:
        """Whether the driver failed to get memory since the last look; on a Spark it then is late.

        MemAvailable may still say 22 GiB, and the machine freezes within seconds.
        """
        if self._descriptor < 0:
            return False
        record = self._buffers[0]
        for _ in range(MOST_RECORDS):
            try:
                length = os.readv(self._descriptor, self._buffers)
            except BrokenPipeError:
                continue  # Records were overwritten before they were read.
            except OSError:
                return False
            if not length:
                return False
            driver = record.find(_DRIVER, 0, length)
            if driver >= 0 and record.find(_NO_MEMORY, driver, length) >= 0:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Orders:
    argv: Sequence[str]
    env: Mapping[str, str]
    memory_floor_bytes: int | None
    grace_s: float
    max_restarts: int
    stalls: Callable[[], StallWatch] | None = None
    """Makes a watch that has seen nothing yet; None: a hung engine is not noticed."""
    idle: Callable[[], IdleWatch] | None = None


class Supervision:
    def __init__(
        self,
        orders: Orders,
        *,
        memory: AvailableMemory,
        kernel_log: KernelLog,
        probe: PollingRequest | None,
    ) -> None:
        self.orders, self.memory, self.probe = orders, memory, probe
        self.kernel_log = kernel_log
        self.offer = processes.OfferToTheKernel()
        self.child = self.restarts = 0
        self.stop_deadline_s: float | None = None
        self.has_been_healthy = self.has_stalled = self.stops_idle = False
        floor = orders.memory_floor_bytes
        self.trip_below_bytes = 0 if floor is None else floor + TRIP_MARGIN_BYTES

    def run(self) -> int:
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
            _, left = processes.kill_all(self.child)
            crash_code = EXIT_IDLE if self.stops_idle else self._honest(code)
            if left:
                _say_who_is_left(left, crash_code)
            if left or not self._may_restart():
                return crash_code
            self.restarts += 1
            most = self.orders.max_restarts
            report("restart", exit_code=crash_code, restart=self.restarts, max_restarts=most)
        return 128 + stop if crash_code is None else crash_code

    def _watch(self) -> int | None:
        """The child's exit code, or None after a memory trip (everything is dead then)."""
        healthy = self.has_stalled = False
        stalls = self.orders.stalls() if self.orders.stalls else None
        idle = self.orders.idle() if self.orders.idle else None
        while True:
            self._take_signal()
            if self._tripped():
                return None
            status = processes.reap(self.child)
            if status is not None:
                return processes.exit_code(status)
            if self.probe is not None and not healthy:
                answer = self.probe.tick(time.monotonic())
                healthy = answer is not None and answer.status == b"200"
                self.has_been_healthy |= healthy
            elif self.stop_deadline_s is None:
                if stalls is not None and self._hangs(stalls):
                    return EXIT_STALLED
                if idle is not None:
                    self._stop_when_idle(idle, stalls)
            if self.stop_deadline_s is not None and time.monotonic() >= self.stop_deadline_s:
                with suppress(ProcessLookupError):
                    os.killpg(self.child, signal.SIGKILL)
                self.stop_deadline_s = float("inf")
                report("grace_over", grace_s=self.orders.grace_s)

    def _hangs(self, stalls: StallWatch) -> bool:
        """Whether the engine hangs; what it hung in has been told then, and it has ended."""
        facts = stalls.tick(time.monotonic())
        if facts is None:
            return False
        report("stalled", **facts, gpu=evidence.gpu_state(), exit_code=EXIT_STALLED)
        evidence.write_stacks(self.child)
        self.has_stalled = True
        return True

    def _take_signal(self) -> None:
        """Wait one poll interval or until a signal is there, and pass a stop on to the child."""
        info = signal.sigtimedwait(_WATCHED, POLL_S)
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        # Who stops us says so twice, and some servers take a second word as a kill.
        if self.stop_deadline_s is None:
            self._stop(info.si_signo)

    def _stop(self, number: int) -> None:
        self.stop_deadline_s = time.monotonic() + self.orders.grace_s
        with suppress(ProcessLookupError):
            os.kill(self.child, number)

    def _stop_when_idle(self, idle: IdleWatch, stalls: StallWatch | None) -> None:
        if stalls is not None and stalls.is_asking:
            idle.overlook(time.monotonic())
        idle_s = idle.tick(time.monotonic())
        if idle_s is not None:
            self.stops_idle = True
            report("idle", idle_s=round(idle_s, 1), exit_code=EXIT_IDLE)
            self._stop(signal.SIGTERM)

    def _tripped(self) -> bool:
        if not self.trip_below_bytes:
            return False
        available = self.memory.read_bytes()
        is_above = available is None or available >= self.trip_below_bytes
        if is_above and not self.kernel_log.tells_of_no_memory():
            return False
        killed, left = processes.kill_all(self.child)
        bounds = {"floor_bytes": self.orders.memory_floor_bytes}
        bounds["trip_below_bytes"] = self.trip_below_bytes
        ended = {"killed_processes": killed, "exit_code": EXIT_MEMORY_FLOOR}
        driver = {"driver": _NO_MEMORY.decode()} if is_above else {}
        report("memory_floor", mem_available_bytes=available, **bounds, **driver, **ended)
        if left:
            _say_who_is_left(left, EXIT_MEMORY_FLOOR)
        return True

    def _honest(self, code: int) -> int:
        """The child's code, unless it says what only the guard can know or is no failure."""
        # vLLM ends with 0 after some engine crashes; without a stop signal that is a failure.
        if code == 0 and self.stop_deadline_s is None:
            report("ended_without_stop", child_exit_code=0, exit_code=EXIT_SILENT_END)
            return EXIT_SILENT_END
        if code in GUARDS_OWN and not self.has_stalled:
            report("ended_with_the_guards_code", child_exit_code=code, exit_code=EXIT_SILENT_END)
            return EXIT_SILENT_END
        if code == EXIT_KILLED and self.stop_deadline_s == float("inf"):
            return EXIT_TOLD_TO_STOP  # We killed it, and `killed` would read like an accident.
        return code

    def _may_restart(self) -> bool:
        if self.stop_deadline_s is not None or not self.has_been_healthy:
            return False
        # A stop that came while the group was being killed has been passed on to no one yet.
        return self.restarts < self.orders.max_restarts and _pending_stop() is None


def _pending_stop() -> int | None:
    info = signal.sigtimedwait(STOP_SIGNALS, 0)
    return None if info is None else info.si_signo


def _say_who_is_left(pids: Sequence[int], exit_code: int) -> None:
    """Another vLLM would not have what they still hold, and a Spark out of memory freezes."""
    named = [processes.description_of(pid) for pid in pids[:MAX_NAMED]]
    facts = {"count": len(pids), "waited_s": processes.KILL_TIMEOUT_S, "exit_code": exit_code}
    report("still_there", processes=named, **facts)


def _make_ready(memory: AvailableMemory) -> None:
    """Fetch all that an emergency needs: without memory, a missing page may never come."""
    memory.read_bytes()
    processes.descendants(os.getpid())
    line_of("memory_floor", mem_available_bytes=0)
    with suppress(OSError):
        write_at_once(b"")
    gc.collect()
    gc.freeze()
    gc.disable()
    if refusal := processes.lock_memory():
        report("memory_not_locked", error=refusal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparkdeploy-guard",
        description="Run a command as PID 1: signals, orphans, key file, memory floor, restarts.",
    )
    parser.add_argument("--memory-floor-bytes", type=int, metavar="N")
    parser.add_argument("--meminfo", type=Path, default=Path("/proc/meminfo"), metavar="PATH")
    parser.add_argument("--kernel-log", type=Path, default=KERNEL_LOG, metavar="PATH")
    parser.add_argument("--key-file", type=Path, metavar="PATH")
    parser.add_argument("--node-env", default="", metavar="NAMES", help="not the image's own")
    parser.add_argument("--grace-s", type=float, default=20.0, metavar="S")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="N")
    parser.add_argument("--health-url", metavar="URL", help="restarts need one 200 from here")
    parser.add_argument("--stall-s", type=float, metavar="S", help="an engine hangs after that")
    parser.add_argument("--canary-model", default="", metavar="NAME", help="can be asked for text")
    parser.add_argument("--canary-s", type=float, default=math.inf, metavar="S", help="when idle")
    parser.add_argument("--idle-stop-s", type=float, metavar="S", help="stop when nobody asks")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    return parser


def _orders(options: argparse.Namespace, env: dict[str, str]) -> Orders:
    stalls, idle = None, None
    server, key = (options.health_url or "").removesuffix("/health"), env.get(KEY_VARIABLE, "")
    if server and options.stall_s is not None:
        env.setdefault(evidence.FAULT_HANDLER, "1")
        canary = {"canary_after_s": options.canary_s, "canary_model": options.canary_model}
        stalls = partial(stall_watch, server, key, options.stall_s, **canary)
    if server and options.idle_stop_s is not None:
        idle = lambda: IdleWatch(metrics_request(server, key), options.idle_stop_s)  # noqa: E731
    floor, grace_s = options.memory_floor_bytes, options.grace_s
    return Orders(options.command, env, floor, grace_s, options.max_restarts, stalls, idle)


def _child_env(
    env: Mapping[str, str], key_file: Path | None, kept: Collection[str] = ()
) -> dict[str, str]:
    """Leave out what an image says of the node it was made on; `kept` was said of this one."""
    child_env = {
        name: value for name, value in env.items() if name in kept or not belongs_to_node(name)
    }
    if key_file is not None:
        key = key_file.read_text(encoding="utf-8").strip()
        if not key:
            raise ValueError(f"the key file {key_file} is empty")
        child_env[KEY_VARIABLE] = key
    return child_env
