"""The guard's own process, and starting, finding, killing and reaping those beneath it."""

import ctypes
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
MCL_CURRENT = 1
MCL_FUTURE = 2
KILL_TIMEOUT_S = 10.0
OFFER = b"1000"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, *STOP_SIGNALS)


def become_subreaper() -> None:
    """Inherit orphans of the child even when this process is not PID 1, and keep the dead."""
    # Where the parent ignores SIGCHLD, so would we, and the kernel would reap the child before
    # `reap` could ask how it ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shut_out_others() -> None:
    """Keep the child, which has our uid, out of this process: its files, memory, environment."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def lock_memory() -> str | None:
    libc = ctypes.CDLL(None, use_errno=True)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    # Under a small limit future allocations would fail instead of being locked.
    flags = MCL_CURRENT | (MCL_FUTURE if soft == resource.RLIM_INFINITY else 0)
    if libc.mlockall(flags) == 0:
        return None
    return f"{os.strerror(ctypes.get_errno())} (RLIMIT_MEMLOCK is {soft} bytes)"


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
    """Lead a session (and group) of its own, no signal blocked; OSError when it cannot be run."""
    with offer:
        return os.posix_spawnp(
            argv[0], list(argv), dict(env), setsid=True, setsigmask=(), setsigdef=_RESET_SIGNALS
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


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone, or be one that we may not touch."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_all(leader: int) -> tuple[int, list[int]]:
    """SIGKILL the group of `leader` and every descendant, and reap them, until nothing is left.

    Once is not enough, as processes that left the group may still be forking. Returns how many were
    killed and the pids of those that are still there after KILL_TIMEOUT_S, stuck in the kernel.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        living = descendants(os.getpid())
        for pid in living:
            send(pid, signal.SIGKILL)
        killed.update(living)
        reap(leader)
        if not living or time.monotonic() > deadline:
            return len(killed), living
        time.sleep(0.01)


def descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - the least work, in an emergency
        if entry.isdigit():
            with suppress(OSError):
                _, _, parent = _name_state_and_parent(entry)
                children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    queue = [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def description_of(pid: int) -> dict[str, object]:
    """What the kernel says of a process that does not end: its name, state and where it waits."""
    name = state = waits_in = b""
    with suppress(OSError):
        name, state, _ = _name_state_and_parent(str(pid))
        waits_in = Path(f"/proc/{pid}/wchan").read_bytes()
    said = {"name": name, "state": state, "wchan": waits_in[:64]}
    return {"pid": pid, **{key: value.decode(errors="replace") for key, value in said.items()}}


def is_alive(pid: int) -> bool:
    """Whether it runs, waits or is stopped; a dead one that nobody has reaped is not."""
    try:
        _, state, _ = _name_state_and_parent(str(pid))
    except OSError:
        return False
    return state not in (b"Z", b"X")


def exit_code(status: int) -> int:
    """A wait status as the code a shell shows: 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _name_state_and_parent(pid: str) -> tuple[bytes, bytes, int]:
    """OSError when the process is gone."""
    stat = Path("/proc", pid, "stat").read_bytes()
    # The name in parentheses may hold spaces and parentheses itself.
    begin, end = stat.index(b"("), stat.rindex(b")")
    state, parent, _ = stat[end + 2 :].split(None, 2)
    return stat[begin + 1 : end], state, int(parent)
