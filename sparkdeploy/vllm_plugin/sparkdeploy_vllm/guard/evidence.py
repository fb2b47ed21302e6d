"""What hung processes were doing: their Python stacks in the log, and the GPU's own word.

Nothing has to be installed, and no other process has to be looked into: Python's own fault handler
(PYTHONFAULTHANDLER) writes the stacks of all threads on stderr when its process gets SIGABRT,
whatever runs in it. The process ends by it, which it was to do anyway.
"""

import os
import resource
import select
import signal
import time

from sparkdeploy_vllm.guard import processes
from sparkdeploy_vllm.guard.report import report

FAULT_HANDLER = "PYTHONFAULTHANDLER"
NO_CORE_BYTES = 1
"""The kernel writes no core of a process with this limit, nor pipes it to a handler: a core of an
engine would have a hundred gigabytes."""
STACK_TIMEOUT_S = 2.0
ALL_STACKS_TIMEOUT_S = 20.0
ASK_GPU = (
    "nvidia-smi",
    "--query-gpu=name,pstate,clocks.sm,temperature.gpu,power.draw,clocks_event_reasons.active",
    "--format=csv,noheader",
)
GPU_TIMEOUT_S = 3.0
MOST_GPU_BYTES = 2048


def leave_no_core() -> None:
    """Set this process's limit, which its children inherit."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = NO_CORE_BYTES if hard == resource.RLIM_INFINITY else min(hard, NO_CORE_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, hard))


def write_stacks(leader: int) -> int:
    """End every process beneath the guard by SIGABRT, one after the other; how many there were.

    All are stopped first: one that sees another die would fill the log before its turn. Children
    go before their parents.
    """
    below = reversed(processes.descendants(os.getpid()))
    # One that has ended, as nvidia-smi has by now, has no stack to show.
    found = {pid: processes.description_of(pid) for pid in below if processes.is_alive(pid)}
    for pid in found:
        processes.send(pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + ALL_STACKS_TIMEOUT_S
    for pid, description in found.items():
        if time.monotonic() < deadline_s:
            report("stacks_follow", **description)
            processes.send(pid, signal.SIGABRT)
            processes.send(pid, signal.SIGCONT)
            _wait_for_end(pid)
    processes.reap(leader)
    return len(found)


def gpu_state() -> str:
    """One line a GPU of nvidia-smi's; empty where it is missing or says nothing in time."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, write_end, 1), (os.POSIX_SPAWN_DUP2, write_end, 2)]
        pid = os.posix_spawnp(ASK_GPU[0], ASK_GPU, os.environ, file_actions=actions)
    except OSError:
        os.close(write_end)
        os.close(read_end)
        return ""
    os.close(write_end)
    said = _read_for(read_end, GPU_TIMEOUT_S)
    # A driver that hangs keeps it for ever: it is left to `kill_all`.
    processes.send(pid, signal.SIGKILL)
    return said.decode(errors="replace").strip()


def _read_for(read_end: int, timeout_s: float) -> bytes:
    deadline_s, said = time.monotonic() + timeout_s, b""
    try:
        while (left_s := deadline_s - time.monotonic()) > 0 and len(said) < MOST_GPU_BYTES:
            if not select.select([read_end], [], [], left_s)[0]:
                break
            if not (piece := os.read(read_end, MOST_GPU_BYTES)):
                break
            said += piece
    finally:
        os.close(read_end)
    return said[:MOST_GPU_BYTES]


def _wait_for_end(pid: int) -> None:
    deadline_s = time.monotonic() + STACK_TIMEOUT_S
    while processes.is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)
