"""Files from a hub to this disk: over Xet by the hub's own library, or over HTTP; then hashed.

The library's hf_hub_download (huggingface_hub 2.4) begins a file anew after every break, and lets
an answer name the file it writes. Here what came over HTTP is resumed, by another process as well,
and every name comes from the listing that was checked. Two functions of the library that its
reference does not have are called here and nowhere else: `xet_get` and `abort_xet_session`.
"""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import Timeout
from httpx2 import HTTPError
from huggingface_hub import HfFileMetadata, file_download, get_hf_file_metadata
from huggingface_hub.utils import WeakFileLock, XetFileData, build_hf_headers
from huggingface_hub.utils._xet import abort_xet_session

from sparkdeploy import __version__
from sparkdeploy.checkpoint import cache
from sparkdeploy.checkpoint.durable import finish
from sparkdeploy.checkpoint.hub import (
    Hub,
    RetryError,
    authorization,
    download_failed,
    first_line,
    is_followed,
)
from sparkdeploy.checkpoint.hub_client import OTHERS_HINT, library_errors, prepare_client
from sparkdeploy.checkpoint.ranges import HubRanges, NoPartsError
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, shown
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import open_regular
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    import hashlib

CONNECTIONS = 8
"""Files that are fetched at the same time; as many as the hub's own library takes."""
LOCK_LOOK_S = 5.0
XET_TRIES = 2
"""Then a file is fetched over HTTP: a mirror may name a store that nobody reaches."""
HASH_BYTES = 1 << 20


class WrongContentError(CheckpointError):
    """A file that is not what the hub's list says; another try may bring the right one."""


class StoppedError(Exception):
    """The files beside it were given up, and so is this one; what there is of it is kept."""


@dataclass(slots=True)
class FileProgress:
    """Counts, bounds and hashes the bytes of one file; whoever moves them learns when to stop."""

    file: RepoFile
    stop: threading.Event
    count: Callable[[int], None]
    """Gets new bytes; a negative number takes back what has to be fetched again."""
    done_bytes: int = 0

    def add(self, more_bytes: int) -> None:
        """Raises StoppedError, and WrongContentError when more is there than the hub states."""
        if self.stop.is_set():
            raise StoppedError
        if self.done_bytes + more_bytes > self.file.size_bytes:
            raise WrongContentError(
                f"{self.file.name} has more than the {self.file.size_bytes} bytes that the hub "
                "states."
            )
        self.done_bytes += more_bytes
        self.count(more_bytes)

    def restart(self) -> None:
        """Take back what was counted; StoppedError instead of another try."""
        self.count(-self.done_bytes)
        self.done_bytes = 0
        self.add(0)

    def check(self, size_bytes: int, hash_hex: str) -> None:
        file = self.file
        if size_bytes != file.size_bytes:
            raise WrongContentError(
                f"{file.name} has {size_bytes} bytes, and the hub states {file.size_bytes}."
            )
        if hash_hex != file.blob_name:
            raise WrongContentError(
                f"{file.name} is not the file the hub describes: its hash differs."
            )

    def check_file(self, path: Path) -> None:
        """Read a file of this disk, and check it; what was not counted yet is counted."""
        if not stat.S_ISREG(path.stat().st_mode):
            # A pipe would be waited for until somebody writes to it.
            raise WrongContentError(f"{self.file.name} is no file.")
        with open_regular(path) as content:
            digest = self.hash_of(content)
            self.check(content.tell(), digest.hexdigest())

    def hash_of(self, content: IO[bytes]) -> "hashlib._Hash":
        """Return the hash of an open file, read to its end; what was not counted yet is counted."""
        digest, read_bytes = self.file.new_hash(), 0
        content.seek(0)
        while chunk := content.read(HASH_BYTES):
            read_bytes += len(chunk)
            self.add(max(0, read_bytes - self.done_bytes))
            digest.update(chunk)
        return digest


@dataclass(slots=True)
class Transfer:
    """Fetches files of one commit into its snapshot; any number of threads may call `fetch`."""

    hub: Hub
    facts: RepoFacts
    stop: threading.Event
    count: Callable[[int], None]
    """Gets new bytes; a negative number takes back what has to be fetched again."""
    _connections: threading.Semaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(CONNECTIONS)
    )
    """Held while bytes are fetched, and not while a file is hashed or synced."""
    _ranges: HubRanges = field(init=False)
    _root: Path = field(init=False)

    def __post_init__(self) -> None:
        prepare_client()
        self._ranges = HubRanges(self.hub, self.facts)
        self._root = cache.repo_folder(self.hub.cache, self.facts.repo)

    def fetch(self, file: RepoFile) -> None:
        """Give a file's name in the snapshot its content; fetch a wrong one once more."""
        progress = FileProgress(file, self.stop, self.count)
        try:
            self._fetch_once(progress)
        except WrongContentError:
            progress.restart()
            try:
                self._fetch_once(progress)
            except WrongContentError as error:
                raise CheckpointError(
                    f"{self.facts.repo}: {error.message}",
                    hint="it was wrong twice; check the network and the disk, then try again",
                ) from error

    def _fetch_once(self, progress: FileProgress) -> None:
        file, root = progress.file, self._root
        snapshot = root / cache.SNAPSHOTS / self.facts.commit
        with _library_lock(progress, root), cache.open_folder(root, (cache.BLOBS,)) as blobs:
            if not _is_in_snapshot(progress, snapshot):
                if cache.has_blob(root, file):
                    with _kept_if_right(blobs, file.blob_name):
                        progress.check_file(root / cache.BLOBS / file.blob_name)
                elif not _is_shared(progress, root, blobs):
                    self._download(progress, blobs)
                cache.link_blob(file, snapshot)
            cache.tidy_blob(file, blobs)

    def _download(self, progress: FileProgress, blobs: int) -> None:
        described = self._describe(progress.file)
        xet = described.xet_file_data if file_download.is_xet_available() else None
        tries = (xet,) * XET_TRIES if xet is not None else ()
        for failures, data in enumerate(tries, start=1):
            progress.restart()
            try:
                return self._by_xet(progress, data, blobs)
            except RetryError as broken:
                failed = download_failed(self.facts.repo, progress.file.name, broken)
                self.hub.wait_after(failures, broken, failed)
        progress.restart()
        self._ranges.take_address(progress.file.name, described.location)
        return self._by_http(progress, blobs)

    def _describe(self, file: RepoFile) -> HfFileMetadata:
        """What the hub says of a file now; CheckpointError when its list said otherwise."""
        url = self.hub.url(self.facts.repo, self.facts.commit, file.name)

        def ask() -> HfFileMetadata:
            with library_errors(self.hub, self.facts.repo, file.name):
                token = self.hub.token or False
                return get_hf_file_metadata(url, token=token, endpoint=self.hub.endpoint)

        found = self.hub.retried(ask, partial(download_failed, self.facts.repo, file.name))
        listed = (self.facts.commit, file.sha256, file.size_bytes)
        for stated, expected in zip(
            (found.commit_hash, found.etag, found.size), listed, strict=True
        ):
            if None not in (stated, expected) and stated != expected:
                raise CheckpointError(
                    f"{self.facts.repo}: {file.name} is not the one of {self.facts.commit[:12]}: "
                    f"the hub now states {shown(stated)}, and its list {shown(expected)}.",
                    hint=OTHERS_HINT,
                )
        xet = found.xet_file_data
        if xet is not None and not is_followed(url, xet.refresh_route):
            raise CheckpointError(
                f"{self.facts.repo}: the hub sends to {shown(xet.refresh_route)} for "
                f"{file.name}, which is not followed.",
                hint=OTHERS_HINT,
            )
        return found

    def _by_http(self, progress: FileProgress, blobs: int) -> None:
        file, part = progress.file, cache.part_name(progress.file)
        if not cache.part_bytes(file, part, folder=blobs):
            cache.remove(blobs, part)
        with _kept_if_right(blobs, part):
            with cache.create_file(blobs, part, "a+b") as target:
                try:
                    digest = self._append(progress, target)
                except NoPartsError:
                    # A server that does not cut files sends this one from its first byte.
                    progress.restart()
                    target.truncate(0)
                    digest = self._append(progress, target)
                finish(target)
            progress.check(progress.done_bytes, digest.hexdigest())
        os.replace(part, file.blob_name, src_dir_fd=blobs, dst_dir_fd=blobs)

    def _append(self, progress: FileProgress, target: IO[bytes]) -> "hashlib._Hash":
        """Fetch the rest of a file to the end of what is here; return the hash of it all."""
        file, digest = progress.file, progress.hash_of(target)
        with self._connections:
            for chunk in self._ranges.read(file.name, progress.done_bytes, file.size_bytes):
                progress.add(len(chunk))
                digest.update(chunk)
                target.write(chunk)
        return digest

    def _by_xet(self, progress: FileProgress, xet: XetFileData, blobs: int) -> None:
        file = progress.file
        part = self._root / cache.BLOBS / cache.part_name(file)
        try:
            with cache.create_file(blobs, part.name, "wb"), self._connections, _errors_of_xet():
                file_download.xet_get(
                    incomplete_path=part,
                    xet_file_data=xet,
                    headers=self._headers(xet.refresh_route),
                    expected_size=file.size_bytes,
                    displayed_filename=file.name,
                    tqdm_class=_bar(progress.add),
                )
            progress.check_file(part)
            with open_regular(part) as content:
                finish(content)
        except BaseException:
            # Its chunks may have come in any order: nothing can go on from it.
            cache.remove(blobs, part.name)
            raise
        os.replace(part.name, file.blob_name, src_dir_fd=blobs, dst_dir_fd=blobs)

    def _headers(self, url: str) -> dict[str, str]:
        """What the library sends; the token goes to no other host."""
        headers: dict[str, str] = build_hf_headers(
            token=False, library_name="sparkdeploy", library_version=__version__
        )
        return headers | authorization(url, self.hub.endpoint, self.hub.token)


def _is_shared(progress: FileProgress, root: Path, blobs: int) -> bool:
    """Give the blob of another repository a second name here; False without a sound one."""
    found, name = cache.blob_elsewhere(progress.file, root), progress.file.blob_name
    if found is None:
        return False
    # What has the name is of another size.
    cache.remove(blobs, name)
    try:
        os.link(found, name, dst_dir_fd=blobs)
    except OSError:
        return False
    with contextlib.suppress(WrongContentError), _kept_if_right(blobs, name):
        progress.check_file(root / cache.BLOBS / name)
        return True
    console.warn(f"{found} is damaged; {progress.file.name} is fetched beside it")
    progress.restart()
    return False


def _is_in_snapshot(progress: FileProgress, snapshot: Path) -> bool:
    """Whether a name of a snapshot leads to its content; one that leads elsewhere is removed."""
    path = snapshot / progress.file.name
    if not os.path.lexists(path):
        return False
    try:
        progress.check_file(path)
    except OSError as error:
        # What cannot be read is not known to be wrong.
        if error.errno not in {errno.ENOENT, errno.ELOOP}:
            raise
    except WrongContentError:
        pass
    else:
        return True
    cache.discard_file(progress.file, snapshot)
    progress.restart()
    return False


def end_xet() -> None:
    """End what hf_xet does in threads of its own; Python cannot stop them."""
    abort_xet_session()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _errors_of_xet() -> Iterator[None]:
    """Let what fails on the way to the Xet store, but for this disk, be tried again."""
    try:
        yield
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        if not isinstance(error, HTTPError) and getattr(error, "errno", None) is not None:
            raise
        raise RetryError(f"Xet: {first_line(error)}") from error


@contextlib.contextmanager
def _kept_if_right(blobs: int, name: str) -> Iterator[None]:
    """Remove a file of the cache that turns out to be wrong: no later try could go on from it."""
    try:
        yield
    except WrongContentError:
        cache.remove(blobs, name)
        raise


@contextlib.contextmanager
def _library_lock(progress: FileProgress, root: Path) -> Iterator[None]:
    """Keep other programs from the same file, and wait for the one that fetches it."""
    lock = root.parent / ".locks" / root.name / f"{progress.file.blob_name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WeakFileLock(lock, timeout=LOCK_LOOK_S))
                break
            except Timeout:
                # Another program works, and this is where a waiting thread learns to stop.
                progress.add(0)
        yield


def _bar(count: Callable[[int], None]) -> type[Any]:
    """Return a class for the library, which makes a progress bar of it for each file."""

    class CountingBar:
        def __init__(self, *_arguments: object, **_options: object) -> None: ...

        def update(self, more_bytes: float | None = 1) -> None:
            count(int(more_bytes or 0))

        def _ignore(self, *_arguments: object, **_options: object) -> None: ...

        # What comes over the line is packed, and may be less than the file.
        update_transfer = set_postfix_str = set_transfer_postfix_str = refresh = close = _ignore

    return CountingBar
