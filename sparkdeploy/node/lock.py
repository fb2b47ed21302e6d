"""One change at a time: locks that the kernel frees when their holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
import time
from typing import TYPE_CHECKING

from filelock import lock_descriptor

from sparkdeploy.errors import NodeError
from sparkdeploy.node.holder import clear_note, holder_of, leave_note
from sparkdeploy.node.plain_file import NotPlainError, freeing_command, open_existing, open_plain
from sparkdeploy.node.shared_folder import shared_folder
from sparkdeploy.node.users import user_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sparkdeploy.node.holder import Holder

POLL_S = 0.2
SHARED_FILE_MODE = 0o666
SETTLE_S = (0.05, 0.1, 0.0)
"""Pauses while another user's first command gives a new folder or file to everybody."""


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
    with contextlib.suppress(NodeError, OSError), shared_folder(folder) as opened:
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
    """Open the file for every user; create folder and file on the first use of this machine."""
    refusal = OSError()
    for pause_s in SETTLE_S:
        try:
            with shared_folder(path.parent) as folder:
                return _for_everybody(open_plain(path.name, folder=folder))
        except NotPlainError as error:
            raise NodeError(
                f"the lock {path} cannot be used: {error.strerror}{_made_by(path, error)}",
                hint=f"as root: {freeing_command(path, error)}",
            ) from error
        except PermissionError as error:
            refusal = error
            time.sleep(pause_s)
        except OSError as error:
            raise _unusable(path, error) from error
    raise _closed(path, refusal) from refusal


def _for_everybody(descriptor: int) -> int:
    """Let other users write their notes into a file of ours, whatever the umask is."""
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != SHARED_FILE_MODE:
        os.fchmod(descriptor, SHARED_FILE_MODE)
    return descriptor


def _made_by(path: Path, error: NotPlainError) -> str:
    if error.errno == errno.EMLINK:
        return ""  # its owner is whoever made the file, not whoever gave it a second name
    try:
        return f", made by {user_name(path.lstat().st_uid)}"
    except OSError:
        return ""


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
