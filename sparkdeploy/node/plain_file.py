"""Files in folders that other users write to: never reached through a link, never waited for."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ATTEMPTS = 10
NEW_MODE = 0o666
"""Of which the umask takes its part."""
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WORDS = {
    errno.ELOOP: "it is a symbolic link",
    errno.EISDIR: "it is a folder",
    errno.ENXIO: "it is a socket or a device",
}


class NotPlainError(OSError):
    """What has the name is no regular file of that one name; `strerror` says what it is."""


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
                return os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, NEW_MODE, dir_fd=folder)
    raise OSError(errno.EAGAIN, "another process keeps making and removing it")


def open_existing(name: str | Path, *, folder: int | None = None) -> int:
    """Open a file as `open_plain` does; FileNotFoundError when nothing has the name."""
    try:
        # Without O_CREAT: the kernel refuses that flag for another user's file in a shared folder.
        descriptor = os.open(name, _FLAGS, dir_fd=folder)
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
    """Return the command that frees the name; it loses nothing but what has that one name.

    The name may be another thing's by the time it runs: `rm` without options removes no folder,
    and `mv -T` puts a folder in no other one and over nothing but an empty one.
    """
    name = shlex.quote(str(path))
    if error.errno == errno.EISDIR:
        return f"mv -T {name} {shlex.quote(f'{path}.aside')}"
    return f"rm {name}"
