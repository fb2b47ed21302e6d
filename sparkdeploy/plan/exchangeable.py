"""Folders on a path where another user could exchange what a container is to mount."""

from __future__ import annotations

import contextlib
import grp
import pwd
import shlex
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.node.shared_files import user_name

if TYPE_CHECKING:
    import os
    from collections.abc import Set as AbstractSet
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Exchangeable:
    folder: Path
    reason: str
    fix: str


def exchangeable(path: Path, trusted_uids: AbstractSet[int]) -> Exchangeable | None:
    """Return the lowest folder of a real path that another user may change; None for none.

    Nobody but its owner exchanges what lies in a folder with the sticky bit. What cannot be looked
    at is left to whoever reads it.
    """
    for folder in (path, *path.parents):
        try:
            status = folder.lstat()
        except OSError:
            continue
        if found := _reason(folder, status, trusted_uids, is_last=folder == path):
            return Exchangeable(folder, *found)
    return None


def exchangeable_tree(folder: Path, trusted_uids: AbstractSet[int]) -> Exchangeable | None:
    """As `exchangeable`, of a folder and of everything in it."""
    return exchangeable(folder, trusted_uids) or next(
        (
            Exchangeable(path, *found)
            for path in sorted(folder.rglob("*"))
            if not path.is_symlink()
            and (found := _reason(path, path.lstat(), trusted_uids, is_last=True))
        ),
        None,
    )


def open_to_all(path: Path) -> Exchangeable | None:
    """Return the lowest folder of a real path that every user may change; None for none."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            mode = folder.lstat().st_mode
            if mode & stat.S_IWOTH and (folder == path or not mode & stat.S_ISVTX):
                return Exchangeable(folder, *_open_to_all(folder))
    return None


def _reason(
    folder: Path, status: os.stat_result, trusted_uids: AbstractSet[int], *, is_last: bool
) -> tuple[str, str] | None:
    name = shlex.quote(str(folder))
    if status.st_uid not in trusted_uids:
        owner = max(trusted_uids)
        return f"it belongs to {user_name(status.st_uid)}", f"sudo chown {owner} {name}"
    if status.st_mode & stat.S_ISVTX and not is_last:
        return None
    if status.st_mode & stat.S_IWOTH:
        return _open_to_all(folder)
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status, trusted_uids):
        return f"group {_group_name(status.st_gid)} may write to it", f"chmod g-w {name}"
    return None


def _open_to_all(folder: Path) -> tuple[str, str]:
    return "every user may write to it", f"chmod o-w {shlex.quote(str(folder))}"


def _is_private_group(status: os.stat_result, trusted_uids: AbstractSet[int]) -> bool:
    """Whether a group has no member but trusted users: root's, or one that a user was made with."""
    if status.st_gid == 0:
        return True
    try:
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid)
        members = {pwd.getpwnam(name).pw_uid for name in group.gr_mem}
    except (KeyError, OverflowError):
        return False
    is_owners = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    return is_owners and members <= trusted_uids


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        return str(gid)
