"""Folders that are this user's alone: keys, logs of crashes and compiled code lie below them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from sparkdeploy import atomic_files

PRIVATE_MODE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ARRANGED = stat.S_ISVTX | stat.S_ISGID
"""Bits of a folder that somebody has set up for several users."""


def make_private(folder: Path) -> None:
    """Make a folder, with what is missing above it, for this user alone; one there stays so."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(mode=PRIVATE_MODE, exist_ok=True)


def write_private(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Write a file into a private folder; it appears whole or not at all.

    What is durable is there after a power cut, and costs a wait for the disk.
    """
    make_private(path.parent)
    with atomic_files.replacing(path, atomic_files.SHARED_FILE_MODE) as file:
        file.write(text.encode())
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    if is_durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def keep_private(folder: Path) -> None:
    """Make a folder of ours for this user alone, and take others' rights from an old one."""
    make_private(folder)
    # Left as they are: a folder of another user, one that is set up for several, a mounted disk and
    # the home folder, which are more than a folder of ours whatever a variable says.
    status, place = folder.stat(), folder.resolve()
    is_own = status.st_uid == os.geteuid() and not status.st_mode & _ARRANGED
    if not (is_own and status.st_mode & _OTHERS):
        return
    is_more = place in (Path("~").expanduser().resolve(), Path("/")) or place.is_mount()
    if not is_more:
        # A disk that takes no modes, such as a share of another system's, is no reason to stop.
        with contextlib.suppress(OSError):
            folder.chmod(PRIVATE_MODE)
