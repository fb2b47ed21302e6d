"""Starting, finding, killing and reaping the processes beneath the guard."""

import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT_S = 10.0
_RESET_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
)


def become_subreaper() -> None:
    """Inherit orphans of the child even when this process is not PID 1."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Start `argv` as leader of a session (and group) of its own; return its pid.

    Python's ignored signals are reset and no signal is blocked. OSError when it cannot be run.
    """
    child = os.posix_spawnp(
        argv[0],
        list(argv),
        dict(env),
        setsid=True,
        setsigmask=(),
        setsigdef=_RESET_SIGNALS,
    )
    _offer_to_the_kernel(child)
    return child


def _offer_to_the_kernel(pid: int) -> None:
    """Should the kernel's own killer be the faster one, it takes the model and not an ssh daemon.

    What the child starts inherits the offer.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")


def reap(leader: int) -> int | None:
    """Collect every dead child; the wait status of `leader` when it is among them."""
    leader_status = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return leader_status
        if pid == 0:
            return leader_status
        if pid == leader:
            leader_status = status


def kill_all(leader: int) -> int:
    """SIGKILL the group of `leader` and every descendant, and reap them; how many were killed.

    Repeats until nothing is left, because processes that left the group may still be forking;
    gives up on those stuck in the kernel after KILL_TIMEOUT_S.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        living = descendants(os.getpid())
        for pid in living:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(living)
        reap(leader)
        if not living or time.monotonic() > deadline:
            return len(killed)
        time.sleep(0.01)


def descendants(ancestor: int) -> list[int]:
    """Pids below `ancestor` that are not yet reaped."""
    parents = dict(_pids_and_parents())
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def exit_code(status: int) -> int:
    """A wait status as the code a shell shows: 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _pids_and_parents() -> list[tuple[int, int]]:
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - the least work, in an emergency
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_bytes()
        except OSError:
            continue
        # The command in parentheses may hold spaces and parentheses itself.
        fields = stat[stat.rindex(b")") + 2 :].split(None, 2)
        found.append((int(entry), int(fields[1])))
    return found
