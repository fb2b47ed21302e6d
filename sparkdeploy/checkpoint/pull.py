"""Downloads: resolved once, resumed, and every file held against what the hub says of it."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy.checkpoint import cache
from sparkdeploy.checkpoint.durable import Progress, disk_errors, only_one
from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.checkpoint.ranges import HubRanges, Meter
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile
from sparkdeploy.checkpoint.treatment import Treatment, check_remote
from sparkdeploy.console import console, format_bytes
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node import facts as machine

SPARE_BYTES = 1 << 30
"""What a download leaves free on its disk."""


@dataclass(frozen=True, slots=True)
class WantedRepository:
    repo: str
    revision: str = "main"
    treatment: Treatment | None = None
    """For a finished hybrid: what it must hold, which is looked at before it is fetched."""


@dataclass(frozen=True, slots=True)
class Download:
    """A repository at one commit, what of it is still missing, and the room there is for it."""

    facts: RepoFacts
    missing: tuple[RepoFile, ...]
    """Files that its snapshot lacks, also those whose content is here already."""
    missing_bytes: int
    """What will be downloaded, unless a file that is here turns out to be damaged."""
    is_verified: bool
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Pulled:
    repo: str
    revision: str
    commit: str
    path: Path
    size_bytes: int
    fetched_bytes: int


def announce(hub: Hub, lock: HubLock, wanted: WantedRepository, *, anew: bool) -> Download:
    """Resolve a repository, and say what is to be downloaded: commit, bytes, disk and licence."""
    found = resolve(hub, lock, wanted.repo, wanted.revision, anew=anew)
    download = plan_download(hub, lock, found, free_bytes=machine.free_bytes(hub.cache) or 0)
    if wanted.treatment is not None and download.missing:
        check_remote(HubRanges(hub, found), wanted.treatment)
    to_come = "nothing to download"
    if download.missing_bytes:
        to_come = f"{format_bytes(download.missing_bytes)} to download"
    elif not download.is_verified:
        to_come = "all here, to be verified"
    console.info(
        f"{found.repo} at {found.commit[:12]}: {to_come} of {format_bytes(found.size_bytes)}, "
        f"{format_bytes(download.free_bytes)} free in {hub.cache}, "
        f"licence {found.license or 'not stated'}"
    )
    return download


def fetch(hub: Hub, lock: HubLock, download: Download) -> Pulled:
    found = download.facts
    path = cache.snapshot_folder(hub.cache, found.repo, found.commit)
    if not download.is_verified:
        with console.step(f"download of {found.repo}") as step:
            pull(hub, lock, download, step.progress)
    return Pulled(
        found.repo, found.revision, found.commit, path, found.size_bytes, download.missing_bytes
    )


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
    pin = lock.pin(facts.repo, facts.revision)
    snapshot = cache.snapshot_folder(hub.cache, facts.repo, facts.commit)
    missing = cache.missing_in(snapshot, facts.files)
    is_pinned = pin is not None and pin.is_verified and pin.commit == facts.commit
    missing_bytes = download_bytes(hub.cache, facts)
    return Download(facts, missing, missing_bytes, is_pinned and not missing, free_bytes)


def download_bytes(hub_cache: Path, facts: RepoFacts) -> int:
    """What is not here yet of a repository: files of other commits and parts of files are."""
    snapshot = cache.snapshot_folder(hub_cache, facts.repo, facts.commit)
    return sum(
        cache.bytes_to_come(file, snapshot) for file in cache.missing_in(snapshot, facts.files)
    )


def pull(hub: Hub, lock: HubLock, download: Download, on_progress: Progress) -> Path:
    """Bring everything that is missing, check every file, and return the snapshot's folder.

    What was interrupted is resumed; a file that is not what the hub says is fetched once more.
    Raises CheckpointError when that does not help, and at once when the disk is too small.
    """
    facts = download.facts
    snapshot = cache.snapshot_folder(hub.cache, facts.repo, facts.commit)
    if download.is_verified:
        return snapshot
    folder = cache.repo_folder(hub.cache, facts.repo)
    needed_bytes = download.missing_bytes + SPARE_BYTES
    if needed_bytes > download.free_bytes and download.missing_bytes:
        raise CheckpointError(
            f"disk: {facts.repo} needs {format_bytes(needed_bytes)} and {folder.parent} has "
            f"{format_bytes(download.free_bytes)} free.",
            hint="free some space, or point HF_HOME at another disk",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    meter = Meter(facts.size_bytes, on_progress)
    with only_one(folder.parent / f".{folder.name}.sparkdeploy-lock", f"download of {facts.repo}"):
        source = HubRanges(hub, facts)
        with disk_errors(str(folder)):
            for file in facts.files:
                _bring(source, file, snapshot, meter)
        cache.point_branch(hub.cache, facts)
        # Last: whoever was killed before it does all of this once more.
        lock.set(facts.repo, facts.revision, replace(_new_pin(facts), is_verified=True))
    return snapshot


def _bring(source: HubRanges, file: RepoFile, snapshot: Path, meter: Meter) -> None:
    path = snapshot / file.name
    before_bytes = meter.done_bytes
    for attempt in (1, 2):
        if not path.exists():
            cache.bring_blob(source, file, snapshot, meter.add)
        try:
            _check_content(path, file)
        except CheckpointError as error:
            cache.discard_blob(file, snapshot)
            if attempt == 2:
                raise CheckpointError(
                    f"{source.name}: {error.message}",
                    hint="it came wrong twice; check the network and the disk, then try again",
                ) from error
            meter.done_bytes = before_bytes
        else:
            break
    # All of it when it was here, nothing when it came just now.
    meter.add(before_bytes + file.size_bytes - meter.done_bytes)


def _check_content(path: Path, file: RepoFile) -> None:
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


def _hash_of(path: Path, file: RepoFile) -> str:
    with path.open("rb") as content:
        if file.sha256 is not None:
            return hashlib.file_digest(content, "sha256").hexdigest()
        # Git's own name of a small file; it is no signature and only finds damage.
        blob = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
        return hashlib.file_digest(content, lambda: blob).hexdigest()


def _stays(pin: RevisionPin, facts: RepoFacts) -> bool:
    """Whether a pin is kept while a commit is fetched."""
    if pin.commit == facts.commit:
        # One without files cannot tell a whole snapshot from one that a cut download left.
        return bool(pin.files)
    return pin.can_serve


def _new_pin(facts: RepoFacts) -> RevisionPin:
    return RevisionPin(facts.commit, license=facts.license, files=facts.files)
