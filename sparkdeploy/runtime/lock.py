"""One change at a time on a node."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POLL_S = 0.2
SHARED_FOLDER_MODE = 0o1777
SHARED_FILE_MODE = 0o666


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock."""

    pid: int
    command: str
    since: str
    """UTC, ISO 8601."""

    def describe(self) -> str:
        """Return the holder in words."""
        return f"`{self.command}` (pid {self.pid}, since {self.since})"


@contextlib.contextmanager
def node_lock(  # noqa: PLR0913 - the clock and its sleep are for tests
    folder: Path,
    node_name: str,
    *,
    command: str,
    wait_s: float = 0.0,
    on_wait: Callable[[str], None] = lambda _text: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the node's lock inside the block; the kernel frees it when the process dies.

    Every user of a machine shares its Docker Engine, so `folder` is one that they share too.

    Waits up to `wait_s`, telling `on_wait` once who holds it; then NodeError naming the holder.
    """
    path = lock_path(folder, node_name)
    with _open_shared(path) as file:
        deadline_s = clock() + wait_s
        told = False
        while not _try_lock(file.fileno()):
            left_s = deadline_s - clock()
            if left_s <= 0:
                raise _held(node_name, path)
            if not told:
                on_wait(f"waiting for {_holder_words(path)}")
                told = True
            sleep(min(POLL_S, left_s))
        _write_holder(file, command)
        try:
            yield
        finally:
            file.truncate(0)


@contextlib.contextmanager
def watching(folder: Path, node_name: str, deployment: str, *, command: str) -> Iterator[None]:
    """Let `lock_holder` of `watch_name` tell who waits for a deployment's start.

    It keeps nobody out: a second one that waits for the same start is only not named.
    """
    with _open_shared(lock_path(folder, watch_name(node_name, deployment))) as file:
        if not _try_lock(file.fileno()):
            yield
            return
        _write_holder(file, command)
        try:
            yield
        finally:
            file.truncate(0)


def watch_name(node_name: str, deployment: str) -> str:
    """Return what a deployment's start is watched under."""
    return f"{node_name}-{deployment}.watch"


def lock_holder(folder: Path, node_name: str) -> Holder | None:
    """Return who holds the node's lock now, or None."""
    path = lock_path(folder, node_name)
    if not path.exists():
        return None
    with _open_shared(path) as file:
        return None if _try_lock(file.fileno()) else _read_holder(path)


def lock_path(folder: Path, node_name: str) -> Path:
    """Return the lock's file; it stays when the lock is free."""
    return folder / (re.sub(r"[^\w.-]", "_", node_name) + ".lock")


def _open_shared(path: Path) -> TextIO:
    """Open the file for every user; create folder and file on the first use of this machine."""
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(SHARED_FOLDER_MODE)
        if not path.exists():
            path.touch()
            path.chmod(SHARED_FILE_MODE)
        # Without O_CREAT: the kernel refuses that flag for another user's file in a shared folder.
        return os.fdopen(os.open(path, os.O_RDWR), "r+")
    except OSError as error:
        raise NodeError(
            f"the lock {path} cannot be opened: {error.strerror}",
            hint="set SPARKDEPLOY_LOCK_DIR to a folder that every user of sparkdeploy may write to",
        ) from error


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(file: TextIO, command: str) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    file.truncate(0)
    file.write(json.dumps(asdict(Holder(os.getpid(), command, since))))
    file.flush()


def _read_holder(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _holder_words(path: Path) -> str:
    holder = _read_holder(path)
    return holder.describe() if holder else "another sparkdeploy"


def _held(node_name: str, path: Path) -> NodeError:
    return NodeError(
        f"{node_name} is being changed by {_holder_words(path)}",
        hint="wait until it has ended, or end that process",
    )
