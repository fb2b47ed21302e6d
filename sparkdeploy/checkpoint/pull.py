"""Downloads: resolved once, resumed, and every file held against what the hub says of it."""

import shlex
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sparkdeploy.checkpoint import cache
from sparkdeploy.checkpoint.conversion import Conversion, check_remote
from sparkdeploy.checkpoint.durable import Progress, disk_errors, only_one
from sparkdeploy.checkpoint.hub import Hub, refuse_offline
from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.checkpoint.ranges import HubRanges, Meter
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, is_in
from sparkdeploy.checkpoint.threads import run_within, work_through
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node import facts as machine
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.step import PlannedStep
from sparkdeploy.units import format_bytes

SPARE_BYTES = 1 << 30
THREADS = 12
"""Of which eight bring files (transfer.CONNECTIONS), and the others hash what has come."""


@dataclass(frozen=True, slots=True)
class WantedRepository:
    repo: str
    revision: str = "main"
    all_files: bool = False
    folders: tuple[str, ...] = ()
    """Folders of it that are models as well, such as a drafter."""
    conversion: Conversion | None = None
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
    free_bytes: int | None
    """None where the file system does not say it."""


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
    found = resolve(hub, lock, wanted, anew=anew)
    download = plan_download(hub, lock, found, free_bytes=machine.free_bytes(hub.cache))
    if wanted.conversion is not None and download.missing:
        check_remote(HubRanges(hub, found), wanted.conversion)
    to_come = "nothing to download"
    if download.missing_bytes:
        to_come = f"{format_bytes(download.missing_bytes)} to download"
    elif not download.is_verified:
        to_come = "all here, to be verified"
    free = "unknown" if download.free_bytes is None else format_bytes(download.free_bytes)
    console.info(
        f"{found.repo} at {found.commit[:12]}: {to_come} of {format_bytes(found.size_bytes)}, "
        f"{free} free in {hub.cache}, "
        f"licence {found.license or 'not stated'}"
    )
    if found.left_out:
        size = format_bytes(sum(file.size_bytes for file in found.left_out))
        console.info(
            f"{found.repo}: left out {size} that vLLM does not read, such as "
            f"{found.left_out[0].name}; "
            f"`checkpoint pull --all-files {shlex.quote(found.repo)}` takes it"
        )
    return download


def planned_downloads(downloads: Iterable[Download]) -> list[PlannedStep]:
    """Return what `fetch` is going to do, as steps to come."""
    return [PlannedStep(_title(item.facts)) for item in downloads if not item.is_verified]


def _title(facts: RepoFacts) -> str:
    return f"download of {facts.repo}"


def fetch(hub: Hub, lock: HubLock, download: Download) -> Pulled:
    found = download.facts
    path = cache.snapshot_folder(hub.cache, found.repo, found.commit)
    if not download.is_verified:
        with console.step(_title(found)) as step:
            pull(hub, lock, download, step.progress)
    return Pulled(
        found.repo, found.revision, found.commit, path, found.size_bytes, download.missing_bytes
    )


def resolve(hub: Hub, lock: HubLock, wanted: WantedRepository, *, anew: bool) -> RepoFacts:
    """What the revision means here: as pinned, or as the hub says now when `anew` or not pinned.

    The answer of the hub is pinned before anything is downloaded, so that what was interrupted
    goes on at the same commit; but not in the place of a pin that serves: `pull` replaces that
    one when every file of the new commit is here.
    """
    repo, revision = wanted.repo, wanted.revision
    pin = lock.pin(repo, revision)
    if pin is not None and pin.files and not anew and not wanted.all_files:
        names = [file.name for file in pin.files]
        if all(any(is_in(folder, name) for name in names) for folder in wanted.folders):
            return pin.facts(repo, revision)
    # A pin without files came from the cache: the hub is asked for that commit, not for the branch.
    asked = pin.commit if pin is not None and not anew else revision
    ask = partial(hub.describe, repo, asked, all_files=wanted.all_files, folders=wanted.folders)
    facts = run_within(None, ask, f"asking the hub about {repo}")
    if pin is None or not _stays(pin, facts):
        lock.set(repo, revision, _new_pin(facts))
    return replace(facts, revision=revision)


def plan_download(hub: Hub, lock: HubLock, facts: RepoFacts, *, free_bytes: int | None) -> Download:
    pin = lock.pin(facts.repo, facts.revision)
    snapshot = cache.snapshot_folder(hub.cache, facts.repo, facts.commit)
    missing = cache.missing_in(snapshot, facts.files)
    is_pinned = (
        pin is not None
        and pin.is_verified
        and pin.commit == facts.commit
        and set(facts.files) <= set(pin.files)
    )
    missing_bytes = download_bytes(hub.cache, facts)
    return Download(facts, missing, missing_bytes, is_pinned and not missing, free_bytes)


def download_bytes(hub_cache: Path, facts: RepoFacts) -> int:
    """What is not here yet of a repository: files of other commits and parts of files are."""
    snapshot = cache.snapshot_folder(hub_cache, facts.repo, facts.commit)
    return sum(
        cache.bytes_to_fetch(file, snapshot) for file in cache.missing_in(snapshot, facts.files)
    )


def pull(hub: Hub, lock: HubLock, download: Download, on_progress: Progress) -> Path:
    """Fetch what is missing, check every file, and return the snapshot's folder."""
    facts = download.facts
    snapshot = cache.snapshot_folder(hub.cache, facts.repo, facts.commit)
    if download.is_verified:
        return snapshot
    folder = cache.repo_folder(hub.cache, facts.repo)
    needed_bytes = download.missing_bytes + SPARE_BYTES
    free_bytes = download.free_bytes
    if free_bytes is not None and needed_bytes > free_bytes and download.missing_bytes:
        raise CheckpointError(
            f"disk: {facts.repo} needs {format_bytes(needed_bytes)} and {folder.parent} has "
            f"{format_bytes(free_bytes)} free.",
            hint="free some space, or point HF_HOME at another disk",
        )
    if download.missing:
        refuse_offline(facts.repo)
    folder.parent.mkdir(parents=True, exist_ok=True)
    cache.require_links(folder.parent)
    with only_one(folder.parent / f".{folder.name}.sparkdeploy-lock", f"download of {facts.repo}"):
        with disk_errors(str(folder)):
            _bring_all(hub, facts, on_progress)
        cache.point_branch(hub.cache, facts)
        # Last: whoever was killed before it does all of this once more.
        lock.set(facts.repo, facts.revision, replace(_new_pin(facts), is_verified=True))
    return snapshot


def _bring_all(hub: Hub, facts: RepoFacts, on_progress: Progress) -> None:
    from sparkdeploy.checkpoint.transfer import (  # noqa: PLC0415 - takes 0.3 s
        StoppedError,
        Transfer,
        end_xet,
    )

    stop = threading.Event()

    def sleep(seconds: float) -> None:
        hub.sleep(seconds)
        if stop.is_set():
            raise StoppedError

    meter = Meter(facts.size_bytes, on_progress)
    transfer = Transfer(replace(hub, sleep=sleep), facts, stop, meter.add)
    # The largest first: what comes last comes alone, over one connection.
    files = sorted(facts.files, key=lambda file: -file.size_bytes)
    try:
        work_through(
            files,
            transfer.fetch,
            threads=THREADS,
            stop=stop,
            watch=lambda: meter.require_progress(facts.repo),
        )
    except KeyboardInterrupt:
        end_xet()
        raise


def _stays(pin: RevisionPin, facts: RepoFacts) -> bool:
    """Whether a pin is kept while a commit is fetched."""
    if pin.commit == facts.commit:
        # One without files cannot tell a whole snapshot from one that a cut download left.
        return bool(pin.files)
    return pin.can_serve


def _new_pin(facts: RepoFacts) -> RevisionPin:
    return RevisionPin(facts.commit, license=facts.license, files=facts.files)
