"""Folders: ours are writable, and no model lies on the disk twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import fail, ok, warn
from sparkdeploy.node.shared_folder import ROOT_UID, made_anew
from sparkdeploy.node.users import user_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.checks.surroundings import Folder


def folder_findings(folders: Iterable[Folder], *, caller_uid: int) -> Iterator[Finding]:
    """Yield whether this user can write where files of ours go."""
    for folder in folders:
        check = f"folders.{folder.role}"
        if folder.owner_uid is None:
            yield ok(check, f"{folder.path} is not there yet; it is made when it is needed")
        elif folder.role == "lock":
            yield _check_lock(folder, folder.owner_uid, caller_uid)
        elif folder.is_writable:
            yield ok(check, folder.path)
        else:
            yield fail(
                check,
                f"{folder.path} belongs to uid {folder.owner_uid} and cannot be written by "
                f"uid {caller_uid}",
                f"sudo chown -R {caller_uid} {folder.path}",
            )


def _check_lock(folder: Folder, owner_uid: int, caller_uid: int) -> Finding:
    """All users share it, so a folder of one of them is refused by the others' commands."""
    check = f"folders.{folder.role}"
    owner = user_name(owner_uid)
    mend = made_anew(Path(folder.path))
    if owner_uid not in {ROOT_UID, caller_uid}:
        return fail(check, f"{folder.path} belongs to {owner}, and all users share it", mend)
    if not folder.is_writable:
        return fail(check, f"{folder.path} belongs to {owner} and cannot be written", mend)
    return ok(check, folder.path)


def check_duplicates(copies: Sequence[str], hub_cache: str) -> Finding:
    """Say whether the recipe's model lies in a second hub cache too."""
    check = "folders.duplicates"
    if not copies:
        return ok(check, "the model lies in no second cache")
    return warn(
        check,
        f"the model lies in {', '.join(copies)} too, and {hub_cache} is the cache in use",
        f"rm -r {copies[0]}, or point HF_HUB_CACHE at that cache instead",
    )
