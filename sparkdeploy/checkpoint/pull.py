"""Downloads: resolved once, resumed, and every file held against what the hub says of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.cache import bring_blob, bytes_to_come, discard_blob
from sparkdeploy.checkpoint.durable import COPY_BYTES, disk_errors
from sparkdeploy.checkpoint.hub import repo_folder
from sparkdeploy.checkpoint.hub_lock import HubLock, Pin, missing_in
from sparkdeploy.checkpoint.locking import only_one
from sparkdeploy.checkpoint.ranges import HubRanges
from sparkdeploy.checkpoint.repo_files import RepoFacts
from sparkdeploy.console import format_bytes
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.checkpoint.hub import Hub
    from sparkdeploy.checkpoint.repo_files import RepoFile

SPARE_BYTES = 1 << 30
"""What a download leaves free on its disk."""


@dataclass(frozen=True, slots=True)
class Download:
    """A repository at one commit, what of it is still missing, and the room there is for it."""

    facts: RepoFacts
    missing: tuple[RepoFile, ...]
    """Files that its snapshot lacks, also those whose content is here already."""
    missing_bytes: int
    """What is to come over the network, if nothing that is here turns out to be wrong."""
    is_verified: bool
    free_bytes: int


def resolve(hub: Hub, lock: HubLock, repo: str, revision: str, *, anew: bool) -> RepoFacts:
    """What the revision means here: as pinned, or as the hub says now when `anew` or not pinned.

    The answer of the hub is pinned before anything is downloaded, so that what was interrupted
    goes on at the same commit; but not in the place of a pin that serves: `pull` replaces that
    one when every file of the new commit is here.
    """
    pin = lock.pin(repo, revision)
    if pin is not None and pin.files and not anew:
        return pin.facts(repo, revision)
    # A pin without files came from the cache: the hub is asked for that commit, not for the branch.
    asked = pin.commit if pin is not None and not anew else revision
    facts = hub.describe(repo, asked)
    if pin is None or not _stays(pin, facts):
        lock.set(repo, revision, _new_pin(facts))
    return RepoFacts(repo, revision, facts.commit, facts.license, facts.files)


def plan_download(hub: Hub, lock: HubLock, facts: RepoFacts, *, free_bytes: int) -> Download:
    """Say what is missing of a repository; nothing is written."""
    pin = lock.pin(facts.repo, facts.revision)
    missing = missing_in(_snapshot(hub.cache, facts), facts.files)
    missing_bytes = download_bytes(hub.cache, facts)
    is_pinned = pin is not None and pin.is_verified and pin.commit == facts.commit
    return Download(facts, missing, missing_bytes, is_pinned and not missing, free_bytes)


def download_bytes(cache: Path, facts: RepoFacts) -> int:
    """What is still to come of a repository: files of other commits and parts of files count."""
    snapshot = _snapshot(cache, facts)
    missing = missing_in(snapshot, facts.files)
    return sum(bytes_to_come(file, snapshot) for file in missing)


def pull(
    hub: Hub, lock: HubLock, download: Download, on_progress: Callable[[int, int], None]
) -> Path:
    """Bring everything that is missing, check every file, and return the snapshot's folder.

    `on_progress` gets bytes done and bytes in all. What was interrupted is gone on with; a file
    that is not what the hub says is fetched once more. Raises CheckpointError when that does not
    help, and before anything is fetched when the disk is too small.
    """
    facts = download.facts
    folder = repo_folder(hub.cache, facts.repo)
    snapshot = _snapshot(hub.cache, facts)
    if download.is_verified:
        return snapshot
    _check_disk(download, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    meter = _Meter(facts.size_bytes, on_progress)
    with only_one(folder.parent / f".{folder.name}.sparkdeploy-lock", f"download of {facts.repo}"):
        source = HubRanges(hub, facts)
        with disk_errors(str(folder)):
            for file in facts.files:
                _bring(source, file, snapshot, meter)
        hub.point_branch(facts)
        # Last: whoever was killed before it does all of this once more.
        lock.set(facts.repo, facts.revision, replace(_new_pin(facts), is_verified=True))
    return snapshot


def check_content(path: Path, file: RepoFile) -> None:
    """Raise CheckpointError unless the file has the size and hash the hub states."""
    if not path.is_file():
        # A pipe would be waited for until somebody writes to it.
        raise CheckpointError(f"{file.name} is no file.")
    size_bytes = path.stat().st_size
    if size_bytes != file.size_bytes:
        raise CheckpointError(
            f"{file.name} has {size_bytes} bytes, and the hub states {file.size_bytes}."
        )
    if _hash_of(path, file) != file.blob_name:
        raise CheckpointError(f"{file.name} is not the file the hub describes: its hash differs.")


class _Meter:
    """Counts bytes of one repository, file by file."""

    def __init__(self, total_bytes: int, on_progress: Callable[[int, int], None]) -> None:
        self._total_bytes = total_bytes
        self._on_progress = on_progress
        self._before_bytes = 0
        self._file_bytes = 0

    def add(self, more_bytes: int) -> None:
        """Some bytes of the present file have come."""
        self._file_bytes += more_bytes
        self._on_progress(self._before_bytes + self._file_bytes, self._total_bytes)

    def end_file(self, size_bytes: int) -> None:
        """The present file is whole."""
        self._before_bytes += size_bytes
        self._file_bytes = 0
        self._on_progress(self._before_bytes, self._total_bytes)


def _bring(source: HubRanges, file: RepoFile, snapshot: Path, meter: _Meter) -> None:
    path = snapshot / file.name
    for attempt in (1, 2):
        if not path.exists():
            bring_blob(source, file, snapshot, meter.add)
        try:
            check_content(path, file)
        except CheckpointError as error:
            discard_blob(file, snapshot)
            if attempt == 2:
                raise CheckpointError(
                    f"{source.name}: {error.message}",
                    hint="it came wrong twice; check the network and the disk, then try again",
                ) from error
        else:
            break
    meter.end_file(file.size_bytes)


def _snapshot(cache: Path, facts: RepoFacts) -> Path:
    return repo_folder(cache, facts.repo) / "snapshots" / facts.commit


def _check_disk(download: Download, folder: Path) -> None:
    needed_bytes = download.missing_bytes + SPARE_BYTES
    if needed_bytes > download.free_bytes and download.missing_bytes:
        raise CheckpointError(
            f"disk: {download.facts.repo} needs {format_bytes(needed_bytes)} and "
            f"{folder.parent} has {format_bytes(download.free_bytes)} free.",
            hint="free some space, or point HF_HOME at another disk",
        )


def _hash_of(path: Path, file: RepoFile) -> str:
    with path.open("rb") as content:
        if file.sha256 is not None:
            return hashlib.file_digest(content, "sha256").hexdigest()
        # Git's own name of a small file; it is no signature and only finds damage.
        digest = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
        # In pieces: the hub may list a file of any length as a small one.
        while chunk := content.read(COPY_BYTES):
            digest.update(chunk)
        return digest.hexdigest()


def _stays(pin: Pin, facts: RepoFacts) -> bool:
    """Whether a pin is kept while a commit is fetched."""
    if pin.commit == facts.commit:
        # One without files cannot tell a whole snapshot from one that a cut download left.
        return bool(pin.files)
    return pin.can_serve


def _new_pin(facts: RepoFacts) -> Pin:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Pin(facts.commit, now, facts.license, files=facts.files)
