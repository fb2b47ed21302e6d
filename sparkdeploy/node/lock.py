"""One change at a time: locks that the kernel frees when their holder dies."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import time
from typing import TYPE_CHECKING

from filelock import lock_descriptor

from sparkdeploy.errors import NodeError
from sparkdeploy.node.holder import clear_note, holder_of, leave_note
from sparkdeploy.node.shared_files import (
    SHARED_FILE_MODE,
    SHARED_FOLDER_MODE,
    RefusedError,
    open_existing,
    open_lock,
    shared_folder,
    user_name,
)
from sparkdeploy.settings import SHARED_LOCK_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sparkdeploy.node.holder import Holder

POLL_S = 0.2


def lock_within(
    descriptor: int,
    wait_s: float,
    on_wait: Callable[[], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Lock an open file and return True, or False when it is another's for all of `wait_s`.

    `on_wait` is called once, when the lock is not free at first. Closing the file frees the lock.
    """
    deadline_s = clock() + wait_s
    is_told = False
    while not lock_descriptor(descriptor, blocking=False):
        if not is_told:
            on_wait()
            is_told = True
        left_s = deadline_s - clock()
        if left_s <= 0:
            return False
        sleep(min(POLL_S, left_s))
    return True


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
    """Hold the node's lock inside the block.

    Every user of a machine shares its Docker Engine, so `folder` is one that they share too. What
    they may have put there is not believed: a link, a FIFO, another name of somebody's file or a
    folder that one of them owns raise NodeError, and nothing behind them is touched.

    Waits up to `wait_s`, telling `on_wait` once who holds it; then NodeError naming the holder.
    """
    path = lock_path(folder, node_name)
    descriptor = _open(path)
    with contextlib.ExitStack() as held:
        held.callback(os.close, descriptor)

        def tell() -> None:
            on_wait(f"waiting for {holder_of(descriptor).describe()}")

        if not lock_within(descriptor, wait_s, tell, clock=clock, sleep=sleep):
            raise NodeError(
                f"{node_name} is being changed by {holder_of(descriptor).describe()}",
                hint="wait until it has ended, or end that process",
            )
        # A file without a name is a lock that nobody else can find.
        if os.fstat(descriptor).st_nlink == 0:
            raise NodeError(
                f"the lock {path} was removed while it was waited for", hint="run the command again"
            )
        leave_note(descriptor, command)
        held.callback(clear_note, descriptor)
        yield


@contextlib.contextmanager
def watching(folder: Path, node_name: str, deployment: str, *, command: str) -> Iterator[None]:
    """Let `lock_holder` of `watch_name` tell who waits for a deployment's start.

    It keeps nobody out: a second one that waits for the same start is only not named, and neither
    is one whose file another user has spoilt.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(NodeError):
            held.enter_context(
                node_lock(folder, watch_name(node_name, deployment), command=command)
            )
        yield


def watch_name(node_name: str, deployment: str) -> str:
    """Return what a deployment's start is watched under."""
    return f"{node_name}-{deployment}.watch"


def lock_holder(folder: Path, node_name: str) -> Holder | None:
    """Return who holds the node's lock now, or None; what cannot be a lock is held by nobody."""
    if not folder.is_dir():
        return None
    with contextlib.suppress(RefusedError, OSError), shared_folder(folder) as opened:
        descriptor = open_existing(lock_path(folder, node_name).name, folder=opened)
        try:
            is_free = lock_descriptor(descriptor, blocking=False)
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
    # One command at a time changes a node: whether this deployment, its words tell.
    is_meant = changing is not None and deployment in changing.command.split()
    return changing if is_meant else None


def lock_path(folder: Path, node_name: str) -> Path:
    """Return the lock's file; it stays when the lock is free."""
    return folder / (re.sub(r"[^\w.-]", "_", node_name) + ".lock")


def _open(path: Path) -> int:
    try:
        return open_lock(path)
    except RefusedError as error:
        raise NodeError(error.cause, hint=error.fix or made_anew(path.parent)) from error
    except PermissionError as error:
        raise _closed(path, error) from error
    except OSError as error:
        raise _unusable(path, error) from error


def _closed(path: Path, error: OSError) -> NodeError:
    """A file that one user keeps from the others; a lock elsewhere would not exclude its users."""
    try:
        status = path.lstat()
    except OSError:
        return _unusable(path, error)  # it is the folder that may not be written to
    return NodeError(
        f"the lock {path} cannot be opened: {error.strerror}; it belongs to "
        f"{user_name(status.st_uid)} (mode {stat.S_IMODE(status.st_mode):04o}, "
        f"wanted {SHARED_FILE_MODE:04o})",
        hint=f"as root: rm {shlex.quote(str(path))}",
    )


def _unusable(path: Path, error: OSError) -> NodeError:
    return NodeError(
        f"the lock {path} cannot be opened: {error.strerror}",
        hint="set SPARKDEPLOY_LOCK_DIR to a folder that every user of sparkdeploy may write to",
    )


def made_anew(folder: Path) -> str:
    """Return what mends a lock folder; mkdir fails where somebody was faster.

    Only sparkdeploy's own folder is removed: any other path is what a user has typed, and may hold
    or be something else altogether.
    """
    if str(folder) != SHARED_LOCK_DIR:
        return "set SPARKDEPLOY_LOCK_DIR to another folder: root's or your own"
    path = shlex.quote(str(folder))
    return f"as root: rm -rf {path} && mkdir -m {SHARED_FOLDER_MODE:04o} {path}"
