"""Files in folders that several users write to: never reached through a link, never waited for.

Other nodes run this text for a lock of theirs (lock.py). They have Python and no sparkdeploy,
so nothing but the standard library is imported here, and no annotation is evaluated.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import shlex
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ATTEMPTS = 10
SHARED_FILE_MODE = 0o666
SHARED_FOLDER_MODE = 0o1777
ROOT_UID = 0
SETTLE_S = (0.05, 0.1, 0.0)
"""Pauses while another user's first command gives a new folder or file to everybody."""
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WORDS = {
    errno.ELOOP: "it is a symbolic link",
    errno.EISDIR: "it is a folder",
    errno.ENXIO: "it is a socket or a device",
}


class NotPlainError(OSError):
    """What has the name is no regular file of that one name; `strerror` says what it is."""


class RefusedError(Exception):
    """A lock that is not to be trusted: why, and the fix; None where the folder is the fault."""

    def __init__(self, cause: str, fix: str | None = None, seen: str = "") -> None:
        super().__init__(cause)
        self.cause, self.fix, self.seen = cause, fix, seen


def user_name(uid: int) -> str:
    """Return the name of a user, or `uid 1234` when the machine has none for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"


def lock_now(descriptor: int) -> bool:
    """Lock an open file until it is closed; False when it is another's."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(path: Path) -> int:
    """Open a lock, made at first use; RefusedError where it cannot be, or others have spoilt it."""
    refusal = OSError()
    for pause_s in SETTLE_S:
        try:
            with shared_folder(path.parent) as folder:
                return _for_everybody(open_plain(path.name, folder=folder))
        except NotPlainError as error:
            raise RefusedError(
                f"the lock {path} cannot be used: {error.strerror}{_made_by(path, error)}",
                f"as root: {freeing_command(path, error)}",
            ) from error
        except OSError as error:
            refusal = error
            if not isinstance(error, PermissionError):
                break
            time.sleep(pause_s)
    cause, fix = f"the lock {path} cannot be opened: {refusal.strerror}", None
    # Without a file it is the folder that may not be written to. A sound lock that could not be
    # opened for another reason, such as too many open files, may be in use: it stays.
    if isinstance(refusal, PermissionError):
        with contextlib.suppress(OSError):
            status = path.lstat()
            mode = f"mode {stat.S_IMODE(status.st_mode):04o}, wanted {SHARED_FILE_MODE:04o}"
            # One user keeps it from the others; a lock elsewhere would not exclude its users.
            cause += f"; it belongs to {user_name(status.st_uid)} ({mode})"
            fix = f"as root: rm {shlex.quote(str(path))}"
    raise RefusedError(cause, fix) from refusal


def open_plain(name: str | Path, *, folder: int | None = None) -> int:
    """Open a regular file to read and write, made if nothing has the name.

    `folder` is a descriptor that `name` is meant from. Whoever may write to the folder may have
    put anything there: a link, a second name of somebody's file, a FIFO and a device raise
    NotPlainError, untouched and without waiting. Raises OSError for the rest.
    """
    for _ in range(ATTEMPTS):
        try:
            return open_existing(name, folder=folder)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                flags = _FILE | os.O_CREAT | os.O_EXCL
                return os.open(name, flags, SHARED_FILE_MODE, dir_fd=folder)
    raise OSError(errno.EAGAIN, "another process keeps making and removing it")


def open_existing(name: str | Path, *, folder: int | None = None) -> int:
    """Open a file as `open_plain` does; FileNotFoundError when nothing has the name."""
    try:
        # Without O_CREAT: the kernel refuses that flag for another user's file in a shared folder.
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in _WORDS:
            raise NotPlainError(error.errno, _WORDS[error.errno]) from error
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        # A second name may be the first name of a file that is none of ours.
        raise NotPlainError(errno.EMLINK, "it is a hard link to another file")
    raise NotPlainError(errno.EINVAL, "it is no regular file")


def freeing_command(path: Path, error: NotPlainError) -> str:
    """Return the command that frees the name; it loses nothing but what has that one name."""
    # The name may be another thing's by the time it runs: `rm` without options removes no folder,
    # and `mv -T` puts a folder in no other one and over nothing but an empty one.
    name = shlex.quote(str(path))
    if error.errno == errno.EISDIR:
        return f"mv -T {name} {shlex.quote(f'{path}.aside')}"
    return f"rm {name}"


def _made_by(path: Path, error: NotPlainError) -> str:
    if error.errno == errno.EMLINK:
        return ""  # its owner is whoever made the file, not whoever gave it a second name
    try:
        return f", made by {user_name(path.lstat().st_uid)}"
    except OSError:
        return ""


def _for_everybody(descriptor: int) -> int:
    """Let other users write their notes into a file of ours, whatever the umask is."""
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != SHARED_FILE_MODE:
        os.fchmod(descriptor, SHARED_FILE_MODE)
    return descriptor


@contextlib.contextmanager
def shared_folder(folder: Path) -> Iterator[int]:
    """Yield a descriptor of the folder, made when it is not there; files are opened from it.

    A descriptor stays with its folder whatever is done to the path meanwhile. A link, a folder of
    another user than root, and one where anybody may remove other users' files raise RefusedError:
    its owner could lead what is opened there elsewhere. OSError for the rest.
    """
    descriptor = _made_or_opened(folder)
    try:
        _require_trusted(folder, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _made_or_opened(folder: Path) -> int:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=SHARED_FOLDER_MODE)
    except FileExistsError:
        return _opened(folder)
    descriptor = _opened(folder)
    # Somebody who may write to the folder above could have put another one in its place.
    if os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, SHARED_FOLDER_MODE)
    return descriptor


def _opened(folder: Path) -> int:
    try:
        return os.open(folder, _FOLDER)
    except NotADirectoryError as error:
        what = "a symbolic link" if folder.is_symlink() else "no folder"
        raise RefusedError(f"the lock folder {folder} cannot be opened: it is {what}") from error


def _require_trusted(folder: Path, status: os.stat_result) -> None:
    if status.st_uid not in {ROOT_UID, os.geteuid()}:
        raise RefusedError(
            f"the lock folder {folder} belongs to {user_name(status.st_uid)}, who could lead "
            "other users' commands to other files"
        )
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise RefusedError(
            f"in the lock folder {folder} every user may remove the files of others",
            f"chmod +t {shlex.quote(str(folder))}",
            f" (mode {stat.S_IMODE(status.st_mode):04o}, wanted {SHARED_FOLDER_MODE:04o})",
        )
