"""Folders and files that stay below a root: no link there leads a write somewhere else.

A cache is shared with other programs and older releases, so that any name in it may be a link.
Everything goes by descriptors of open folders: what was looked at is what is written to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, TYPE_CHECKING, Literal

from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def open_folder_inside(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor of the folder below `root` that `parts` lead to; what lacks is made.

    `root` itself may be a link, as users make one to another disk. Raises CheckpointError when a
    part is a link or no folder, wherever it leads.
    """
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, _FOLDER)
    try:
        for depth, part in enumerate(parts):
            inner = _open_part(descriptor, part, root.joinpath(*parts[: depth + 1]))
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def create_file(folder: int, name: str, mode: Literal["ab", "wb"]) -> IO[bytes]:
    """Open a file of an open folder for writing, and never what a link of that name leads to.

    A link, a pipe or a second name of another file is removed first: it is not what it stands for.
    """
    if regular_bytes(name, folder=folder) is None:
        remove(folder, name)
    # Without O_NONBLOCK a pipe that came in between would wait for its reader.
    guard = os.O_NOFOLLOW | os.O_NONBLOCK

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | guard, 0o644, dir_fd=folder)

    return open(name, mode, opener=opener)


def remove(folder: int, name: str) -> None:
    """Remove a name of an open folder if it is there; where a link leads is left alone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def regular_bytes(path: Path | str, *, folder: int | None = None) -> int | None:
    """The length of a plain file with one name, or None for anything else or nothing."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    is_own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return status.st_size if is_own else None


def _open_part(folder: int, part: str, path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
            raise
        raise CheckpointError(
            f"{path} is a link or a file where a folder must be; nothing was written through it.",
            hint=f"look at it, then remove it and try again: ls -ld {path}",
        ) from error
