"""Starting, finding, killing and reaping the processes beneath the guard."""

import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT_S = 10.0
OFFER = b"1000"
_RESET_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGCHLD,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
)


@dataclass(frozen=True, slots=True)
class Killed:
    """How many processes were killed, and which of them are there all the same."""

    count: int
    still_there: tuple[int, ...]


def become_subreaper() -> None:
    """Inherit orphans of the child even when this process is not PID 1, and keep the dead.

    Where the parent ignores SIGCHLD, so would we, and the kernel would reap the child before
    `reap` could ask how it ended.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shut_out_others() -> None:
    """Keep processes of the same user out of this one: its files, memory and environment.

    The child has the guard's uid; otherwise it could open /proc/1/fd or trace its own guard.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


class OfferToTheKernel:
    """Whatever is started within it is what the kernel's own killer takes first.

    Should that one be the faster, it takes the model and not an ssh daemon. The offer is made in
    our name for the moment of the start, and inherited: made to the child afterwards, it would
    miss what a child forks at once. Open it before `shut_out_others`, which closes it to us too.
    """

    def __init__(self) -> None:
        self._descriptor, self._own = -1, b"0"
        with suppress(OSError):
            self._descriptor = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self._own = os.pread(self._descriptor, 16, 0)

    def __enter__(self) -> None:
        self._write(OFFER)

    def __exit__(self, *_: object) -> None:
        self._write(self._own)

    def _write(self, score: bytes) -> None:
        with suppress(OSError):
            os.pwrite(self._descriptor, score, 0)


def start(argv: Sequence[str], env: Mapping[str, str], offer: OfferToTheKernel) -> int:
    """Start `argv` as leader of a session (and group) of its own; return its pid.

    Python's ignored signals are reset and no signal is blocked. OSError when it cannot be run.
    """
    with offer:
        return os.posix_spawnp(
            argv[0],
            list(argv),
            dict(env),
            setsid=True,
            setsigmask=(),
            setsigdef=_RESET_SIGNALS,
        )


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


def kill_all(leader: int) -> Killed:
    """SIGKILL the group of `leader` and every descendant, and reap them.

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
            return Killed(len(killed), tuple(living))
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


def description_of(pid: int) -> dict[str, object]:
    """What the kernel says of a process that does not end: its name, state and where it waits."""
    name, state = "", ""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        state = stat[stat.rindex(")") + 2 :][:1]
    waits_in = ""
    with suppress(OSError):
        waits_in = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace")
    return {"pid": pid, "name": name, "state": state, "wchan": waits_in[:64]}


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
