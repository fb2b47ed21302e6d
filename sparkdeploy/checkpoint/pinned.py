"""Snapshots by the commit that was pinned, never by where a branch has moved since."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import source as sources
from sparkdeploy.checkpoint.hub import repo_folder
from sparkdeploy.checkpoint.hub_lock import Pin, missing_in
from sparkdeploy.checkpoint.repo_files import is_commit

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.checkpoint.hub_lock import HubLock
    from sparkdeploy.checkpoint.source import CheckpointSource


def find_pinned(
    repo: str, revision: str, hub_cache: Path, lock: HubLock
) -> CheckpointSource | None:
    """The cached snapshot that the revision means here, or None while it is not all there.

    A download of ours counts once every file was verified; a snapshot that other programs made
    counts as it is. Raises CheckpointError when files of it lead nowhere.
    """
    pin = lock.pin(repo, revision)
    if pin is None:
        return sources.find_in_hub_cache(repo, revision, hub_cache)
    snapshot = repo_folder(hub_cache, repo) / "snapshots" / pin.commit
    if not pin.can_serve or missing_in(snapshot, pin.files):
        return None
    return sources.find_in_hub_cache(repo, pin.commit, hub_cache)


def pin_found(source: CheckpointSource, revision: str, lock: HubLock) -> None:
    """Keep the commit of a snapshot that was there before anything was pinned.

    A snapshot that somebody made by hand under another name than a commit's is not pinned.
    """
    if source.revision is None or not is_commit(source.revision):
        return
    if lock.pin(source.name, revision) is not None:
        return
    resolved_at = datetime.now(UTC).isoformat(timespec="seconds")
    lock.set(source.name, revision, Pin(source.revision, resolved_at))
