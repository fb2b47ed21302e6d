"""One change at a time: locks that the kernel frees when their holder dies, and who that is.

The lock of another node is held over its connection by a small program that runs there.
"""

import contextlib
import inspect
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparkdeploy.errors import NodeError
from sparkdeploy.node import shared_files
from sparkdeploy.node.node import RUN_TIMEOUT_S, Node
from sparkdeploy.node.shared_files import (
    SHARED_FOLDER_MODE,
    RefusedError,
    lock_now,
    open_existing,
    open_lock,
    shared_folder,
    user_name,
)
from sparkdeploy.settings import SHARED_LOCK_DIR
from sparkdeploy.terminal.safe_text import visible_line
from sparkdeploy.units import local_time

POLL_S = 0.2
KERNEL_LOCKS = Path("/proc/locks")
NOTE_BYTES = 1 << 18  # the folders of many adapters and mods, each named whole
MAX_COMMAND = 160


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int | None
    """None where the kernel does not tell, as of a process in another container."""
    user: str = ""
    command: str = ""
    """What it wrote into the file; empty when what is there is not its own."""
    deployment: str = ""
    """Which deployment it changes, as it wrote; empty for none."""
    uses: tuple[str, ...] = ()
    """Image tags, repositories and folders that it has named."""
    since: str = ""
    """UTC, ISO 8601."""

    def describe(self) -> str:
        what = f"`{self.command}`" if self.command else "another process"
        if self.pid is None:
            return what
        since = ""
        if self.since:
            time_words = local_time(datetime.fromisoformat(self.since), datetime.now(UTC))
            since = f", since {time_words}"
        return f"{what} (pid {self.pid} of {self.user}{since})"


def lock_within(descriptor: int, wait_s: float, on_wait: Callable[[], None]) -> bool:
    """Lock an open file until it is closed; False when it is another's for all of `wait_s`."""
    if lock_now(descriptor):
        return True
    on_wait()
    deadline_s = time.monotonic() + wait_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))
        if lock_now(descriptor):
            return True
    return False


@contextlib.contextmanager
def node_lock(  # noqa: PLR0913 - each is a word of its note or of the wait
    folder: Path,
    node_name: str,
    *,
    command: str,
    deployment: str = "",
    uses: tuple[str, ...] = (),
    wait_s: float = 0.0,
    on_wait: Callable[[str], None] = lambda _text: None,
) -> Iterator[None]:
    """Hold the node's lock inside the block; NodeError names who keeps it for all of `wait_s`.

    Users share `folder`, and what others put there is not believed: nothing behind a link, a FIFO
    or a folder of one of them is touched.
    """
    path = lock_path(folder, node_name)
    try:
        descriptor = open_lock(path)
    except RefusedError as error:
        hint = error.fix or made_anew(path.parent)
        raise NodeError(f"{error.cause}{error.seen}", hint=hint) from error
    with contextlib.ExitStack() as held:
        held.callback(os.close, descriptor)

        def tell() -> None:
            on_wait(f"waiting for {holder_of(descriptor).describe()}")

        if not lock_within(descriptor, wait_s, tell):
            raise NodeError(
                f"{node_name} is being changed by {holder_of(descriptor).describe()}",
                hint="wait until it has ended, or end that process",
            )
        # A file without a name is a lock that nobody else can find.
        if os.fstat(descriptor).st_nlink == 0:
            raise NodeError(
                f"the lock {path} was removed while it was waited for", hint="run the command again"
            )
        _leave_note(descriptor, command, deployment, uses)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)


@contextlib.contextmanager
def watching(folder: Path, node_name: str, deployment: str, *, command: str) -> Iterator[None]:
    """Let `lock_holder` of `watch_name` tell who waits for a deployment's start."""
    # It keeps nobody out: a second one that waits for the same start is only not named, and neither
    # is one whose file another user has spoilt.
    with contextlib.ExitStack() as held:
        with contextlib.suppress(NodeError):
            held.enter_context(
                node_lock(folder, watch_name(node_name, deployment), command=command)
            )
        yield


def watch_name(node_name: str, deployment: str) -> str:
    return f"{node_name}-{deployment}.watch"


def lock_holder(folder: Path, node_name: str) -> Holder | None:
    """Return who holds the node's lock now, or None; what cannot be a lock is held by nobody."""
    if not folder.is_dir():
        return None
    with contextlib.suppress(RefusedError, OSError), shared_folder(folder) as opened:
        descriptor = open_existing(lock_path(folder, node_name).name, folder=opened)
        try:
            is_free = lock_now(descriptor)
            return None if is_free else holder_of(descriptor)
        finally:
            os.close(descriptor)
    return None


def attendant_of(folder: Path, node_name: str, deployment: str) -> Holder | None:
    """Return who waits for a deployment's start, or changes its containers now; None for nobody."""
    waiting = lock_holder(folder, watch_name(node_name, deployment))
    if waiting is not None:
        return waiting
    changing = lock_holder(folder, node_name)
    return changing if changing is not None and changing.deployment == deployment else None


def lock_path(folder: Path, node_name: str) -> Path:
    """Return the lock's file; it stays when the lock is free."""
    return folder / (re.sub(r"[^\w.-]", "_", node_name) + ".lock")


def made_anew(folder: Path) -> str:
    """Return what mends a lock folder; mkdir fails where somebody was faster."""
    if str(folder) != SHARED_LOCK_DIR:
        # It is what a user has typed, and may hold or be something else altogether.
        return "set SPARKDEPLOY_LOCK_DIR to another folder: root's or your own"
    path = shlex.quote(str(folder))
    return f"as root: rm -rf {path} && mkdir -m {SHARED_FOLDER_MODE:04o} {path}"


def _leave_note(descriptor: int, command: str, deployment: str, uses: tuple[str, ...]) -> None:
    """Write what this process holds the lock for; a full disk costs others only these words."""
    note = {
        "pid": os.getpid(),
        "command": command[:MAX_COMMAND],
        "deployment": deployment[:MAX_COMMAND],
        "uses": uses,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode(), 0)


def holder_of(descriptor: int) -> Holder:
    """Return who holds the lock of a file that this process could not get."""
    pid = _holder_pid(os.fstat(descriptor))
    uid = None if pid is None else _uid_of(pid)
    if pid is None or uid is None:
        return Holder(None)
    # Every user may write to the file: a note counts only when it names the very process that the
    # kernel names, and its words are made printable and short.
    note = _read_note(descriptor)
    if note.get("pid") != pid:
        note = {}
    command, deployment = (_printable(note.get(key)) for key in ("command", "deployment"))
    uses = note.get("uses")
    named = tuple(map(str, uses)) if isinstance(uses, list) else ()
    return Holder(pid, user_name(uid), command, deployment, named, _since(note.get("since")))


def _holder_pid(status: os.stat_result) -> int | None:
    """Find the lock in the kernel's table, which names a file by device and number."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        rows = [line.split() for line in KERNEL_LOCKS.read_text().splitlines()]
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF; those that wait have an arrow instead.
    held = [(row[5], int(row[4])) for row in rows if len(row) > 5 and row[1] == "FLOCK"]
    same_number = [item for item in held if item[0].rpartition(":")[2] == str(status.st_ino)]
    exact = [item for item in same_number if item[0].rpartition(":")[0] == device]
    # Some file systems show another device there: the number decides when only one has it.
    pids = {pid for _, pid in exact or same_number if pid > 0}
    return min(pids) if exact or len(pids) == 1 else None


def _uid_of(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), None)


def _read_note(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, NOTE_BYTES, 0))
    # A few kilobytes of brackets are deeper than the reader goes.
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _printable(value: object) -> str:
    text = value[:MAX_COMMAND] if isinstance(value, str) else ""
    return visible_line(text).replace("`", "'").strip()


def _since(value: object) -> str:
    try:
        return datetime.fromisoformat(str(value)).astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return ""


LOCKED = "sparkdeploy-locked"
# Behind the text of shared_files.py, where the names come from that are not defined here.
_MAIN = r"""
import json, select, sys
from pathlib import Path


def refuse(cause, fix):
    sys.exit(json.dumps({"cause": cause, "fix": fix}))


def lock_within(descriptor, wait_s):
    deadline_s = time.monotonic() + wait_s
    while not lock_now(descriptor):
        if time.monotonic() >= deadline_s:
            refuse("another command starts containers there", "sparkdeploy status")
        # Nobody writes to us: what can be read is the end of the connection.
        if select.select([0], [], [], 0.2)[0]:
            sys.exit(1)


def main(path, wait_s, mark):
    try:
        descriptor = open_lock(path)
    except RefusedError as error:
        refuse(error.cause, error.fix)
    lock_within(descriptor, wait_s)
    if os.fstat(descriptor).st_nlink == 0:
        refuse(f"the lock {path} was removed while it was waited for", "run the command again")
    print(mark, flush=True)
    sys.stdin.buffer.read()


main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
"""


@contextlib.contextmanager
def locked_there(node: Node, path: Path, wait_s: float) -> Iterator[None]:
    """Hold `node_lock`'s lock of another node inside the block, or until the connection ends."""
    text = inspect.getsource(shared_files) + _MAIN
    argv = ("python3", "-I", "-c", text, str(path), f"{wait_s:g}", LOCKED)
    with node.start(f"exec {shlex.join(argv)}") as program:
        if program.read_until(LOCKED, timeout_s=wait_s + RUN_TIMEOUT_S) is None:
            raise _refusal(node, path, program.errors())
        yield


def _refusal(node: Node, path: Path, output: str) -> NodeError:
    last = (output.strip().splitlines() or ["no answer in time"])[-1]
    try:
        refusal = json.loads(last)
        cause, fix = str(refusal["cause"]), str(refusal["fix"] or made_anew(path.parent))
    except (ValueError, KeyError, TypeError):
        cause = f"the lock {path} cannot be taken: {last}"
        fix = "python3 --version; ls -ld " + shlex.join((str(path.parent), str(path)))
    return NodeError(f"{node.name}: {cause}", hint=f"on {node.name}: {fix}")
