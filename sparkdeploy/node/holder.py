"""Who holds a lock: the kernel says which process, and the note in the file only what it does."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparkdeploy.node.shared_files import user_name

KERNEL_LOCKS = Path("/proc/locks")
NOTE_BYTES = 4096
MAX_COMMAND = 160


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as far as it can be known."""

    pid: int | None
    """None where the kernel does not tell, as of a process in another container."""
    user: str = ""
    command: str = ""
    """What it wrote into the file; empty when what is there is not its own."""
    since: str = ""
    """UTC, ISO 8601."""

    def describe(self) -> str:
        """Return the holder in words; they are safe to print."""
        what = f"`{self.command}`" if self.command else "another process"
        if self.pid is None:
            return what
        since = f", since {self.since}" if self.since else ""
        return f"{what} (pid {self.pid} of {self.user}{since})"


def leave_note(descriptor: int, command: str) -> None:
    """Write what this process holds the lock for; a full disk costs others only these words."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    note = {"pid": os.getpid(), "command": command[:MAX_COMMAND], "since": since}
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode(), 0)


def clear_note(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)


def holder_of(descriptor: int) -> Holder:
    """Return who holds the lock of a file that this process could not get.

    Every user may write to the file, so a note counts only when it names the very process that
    the kernel names; and its words are made printable and short.
    """
    pid = _kernels_word(os.fstat(descriptor))
    uid = None if pid is None else _uid_of(pid)
    if pid is None or uid is None:
        return Holder(None)
    note = _read_note(descriptor)
    if note.get("pid") != pid:
        note = {}
    return Holder(pid, user_name(uid), _command(note.get("command")), _since(note.get("since")))


def _kernels_word(status: os.stat_result) -> int | None:
    """Find the lock in the kernel's table, which names a file by device and number.

    Some file systems show another device there: the number decides when only one has it.
    """
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        rows = [line.split() for line in KERNEL_LOCKS.read_text().splitlines()]
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF; those that wait have an arrow instead.
    held = [(row[5], int(row[4])) for row in rows if len(row) > 5 and row[1] == "FLOCK"]
    same_number = [item for item in held if item[0].rpartition(":")[2] == str(status.st_ino)]
    exact = [item for item in same_number if item[0].rpartition(":")[0] == device]
    pids = {pid for _, pid in exact or same_number if pid > 0}
    return min(pids) if exact or len(pids) == 1 else None


def _uid_of(pid: int) -> int | None:
    """Return the real user of a process; None when it has ended."""
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


def _command(said: object) -> str:
    if not isinstance(said, str):
        return ""
    shown = "".join(char if char.isprintable() else "?" for char in said[:MAX_COMMAND])
    return shown.replace("`", "'").strip()


def _since(said: object) -> str:
    try:
        return datetime.fromisoformat(str(said)).astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return ""
