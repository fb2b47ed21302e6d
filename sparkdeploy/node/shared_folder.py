"""A folder that every user of a machine may write to, and that no one of them owns."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.node.users import user_name
from sparkdeploy.settings import SHARED_LOCK_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHARED_FOLDER_MODE = 0o1777
ROOT_UID = 0
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def shared_folder(folder: Path) -> Iterator[int]:
    """Yield a descriptor of the folder, made when it is not there; files are opened from it.

    A descriptor stays with its folder whatever is done to the path meanwhile. A link, a folder of
    another user than root, and one where anybody may remove other users' files raise NodeError:
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
        return os.open(folder, _FLAGS)
    except NotADirectoryError as error:
        what = "a symbolic link" if folder.is_symlink() else "no folder"
        raise NodeError(
            f"the lock folder {folder} cannot be opened: it is {what}", hint=made_anew(folder)
        ) from error


def _require_trusted(folder: Path, status: os.stat_result) -> None:
    if status.st_uid not in {ROOT_UID, os.geteuid()}:
        raise NodeError(
            f"the lock folder {folder} belongs to {user_name(status.st_uid)}, who could lead "
            "other users' commands to other files",
            hint=made_anew(folder),
        )
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise NodeError(
            f"in the lock folder {folder} every user may remove the files of others (mode "
            f"{stat.S_IMODE(status.st_mode):04o}, wanted {SHARED_FOLDER_MODE:04o})",
            hint=f"chmod +t {shlex.quote(str(folder))}",
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
