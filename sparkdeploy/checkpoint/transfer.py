"""One file from a hub to this disk: over Xet by the hub's own library, or over HTTP; then hashed.

The library's functions are called one by one. Its hf_hub_download (huggingface_hub 2.4) begins a
file anew after every break, and lets an answer name the file it writes; here what came over HTTP is
resumed, by another process as well, and every name comes from the listing that was checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from filelock import Timeout
from httpx2 import HTTPError
from huggingface_hub import file_download, get_hf_file_metadata
from huggingface_hub.utils import WeakFileLock, build_hf_headers
from huggingface_hub.utils._xet import abort_xet_session

from sparkdeploy import __version__
from sparkdeploy.checkpoint import cache
from sparkdeploy.checkpoint.addresses import authorization, is_followed
from sparkdeploy.checkpoint.arriving import WrongContentError
from sparkdeploy.checkpoint.durable import finish
from sparkdeploy.checkpoint.hub import RetryError
from sparkdeploy.checkpoint.hub_client import OTHERS_HINT, library_errors, prepare_client
from sparkdeploy.checkpoint.ranges import HubRanges, NoPartsError
from sparkdeploy.checkpoint.repo_files import printable, shown
from sparkdeploy.checkpoint.shared_store import StoredBlob
from sparkdeploy.errors import CheckpointError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import IO

    from huggingface_hub import HfFileMetadata
    from huggingface_hub.utils import XetFileData

    from sparkdeploy.checkpoint.arriving import Arriving
    from sparkdeploy.checkpoint.hub import Hub
    from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile

CONNECTIONS = 8
"""Files that come at the same time; as many as the hub's own library takes."""
LOCK_LOOK_S = 5.0
XET_TRIES = 2
"""Then a file comes over HTTP: a mirror may name a store that nobody reaches."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Brings files of one commit; any number of threads may call it."""

    hub: Hub
    facts: RepoFacts
    _connections: threading.Semaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(CONNECTIONS)
    )
    """Held while bytes come, and not while a file is hashed or synced."""
    _ranges: HubRanges = field(init=False)

    def __post_init__(self) -> None:
        prepare_client()
        object.__setattr__(self, "_ranges", HubRanges(self.hub, self.facts))

    def bring(self, arriving: Arriving, snapshot: Path) -> None:
        """Let a name of `snapshot`, <cache>/models--ORG--NAME/snapshots/COMMIT, have its content.

        Raises WrongContentError for content of another size or hash, which is not kept;
        CheckpointError when it does not come, and when a folder on the way is a link.
        """
        file, root = arriving.file, snapshot.parent.parent
        with _library_lock(arriving, root), cache.open_folder(root, (cache.BLOBS,)) as blobs:
            if not _is_there(arriving, snapshot):
                if cache.has_blob(root, file):
                    self._keep(arriving, root, blobs)
                else:
                    self._fetch(arriving, root, blobs)
                cache.link_blob(file, snapshot)
            cache.tidy_blob(file, blobs)

    def _keep(self, arriving: Arriving, root: Path, blobs: int) -> None:
        blob = root / cache.BLOBS / arriving.file.blob_name
        with _kept_if_right(blobs, blob.name):
            arriving.check_here(blob)
        if blob.with_name(cache.unshared_name(arriving.file)).exists():
            # A try was killed before the last step of `_by_xet`.
            xet = self._describe(arriving.file).xet_file_data
            if xet is not None:
                StoredBlob(blob, xet.file_hash, arriving.file.size_bytes).publish()

    def _fetch(self, arriving: Arriving, root: Path, blobs: int) -> None:
        file, blob = arriving.file, root / cache.BLOBS / arriving.file.blob_name
        known_as = cache.stored_hash(file, root)
        if known_as and _linked(arriving, StoredBlob(blob, known_as, file.size_bytes), blobs):
            return
        described = self._describe(file)
        xet = described.xet_file_data if file_download.is_xet_available() else None
        tries = () if xet is None else (xet,) * XET_TRIES
        for failures, data in enumerate(tries, start=1):
            arriving.begin_anew()
            try:
                self._by_xet(
                    arriving, data, StoredBlob(blob, data.file_hash, file.size_bytes), blobs
                )
            except RetryError as broken:
                self.hub.wait_after(failures, broken, self._failed(file, broken))
            else:
                return
        arriving.begin_anew()
        self._ranges.take_address(file.name, described.location)
        self._by_http(arriving, blobs)

    def _failed(self, file: RepoFile, broken: RetryError) -> CheckpointError:
        return CheckpointError(
            f"{self.facts.repo}: download of {file.name} failed: {printable(str(broken))}",
            hint="check the network; what has come so far is kept",
        )

    def _describe(self, file: RepoFile) -> HfFileMetadata:
        """What the hub says of a file now; CheckpointError when its list said otherwise."""
        url = self.hub.url(self.facts.repo, self.facts.commit, file.name)
        found = self._metadata(file, url)
        listed = (self.facts.commit, file.sha256, file.size_bytes)
        for said, expected in zip((found.commit_hash, found.etag, found.size), listed, strict=True):
            if None not in (said, expected) and said != expected:
                raise CheckpointError(
                    f"{self.facts.repo}: {file.name} is not the one of {self.facts.commit[:12]}: "
                    f"the hub now states {shown(said)}, and its list {shown(expected)}.",
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

    def _metadata(self, file: RepoFile, url: str) -> HfFileMetadata:
        def ask() -> HfFileMetadata:
            with library_errors(self.hub, self.facts.repo, file.name):
                token = self.hub.token or False
                return get_hf_file_metadata(url, token=token, endpoint=self.hub.endpoint)

        return self.hub.retried(ask, partial(self._failed, file))

    def _by_http(self, arriving: Arriving, blobs: int) -> None:
        file, part = arriving.file, cache.part_name(arriving.file)
        if not cache.part_bytes(file, part, folder=blobs):
            cache.remove(blobs, part)
        with _kept_if_right(blobs, part):
            with cache.create_file(blobs, part, "a+b") as target:
                try:
                    digest = self._append(arriving, target)
                except NoPartsError:
                    # A server that does not cut files sends this one from its first byte.
                    arriving.begin_anew()
                    target.truncate(0)
                    digest = self._append(arriving, target)
                finish(target)
            arriving.check(arriving.came_bytes, digest.hexdigest())
        os.replace(part, file.blob_name, src_dir_fd=blobs, dst_dir_fd=blobs)

    def _append(self, arriving: Arriving, target: IO[bytes]) -> hashlib._Hash:
        """Fetch the rest of a file to the end of what is here; return the hash of it all."""
        file, digest = arriving.file, arriving.hash_of(target)
        with self._connections:
            for chunk in self._ranges.read(file.name, arriving.came_bytes, file.size_bytes):
                arriving.add(len(chunk))
                digest.update(chunk)
                target.write(chunk)
        return digest

    def _by_xet(self, arriving: Arriving, xet: XetFileData, stored: StoredBlob, blobs: int) -> None:
        if _linked(arriving, stored, blobs):
            return
        file, part = arriving.file, stored.blob.with_name(cache.part_name(arriving.file))
        # What is there and was not linked is damaged.
        is_new = not stored.path.exists()
        try:
            with cache.create_file(blobs, part.name, "wb"), self._connections, _errors_of_xet():
                file_download.xet_get(
                    incomplete_path=part,
                    xet_file_data=xet,
                    headers=self._headers(xet.refresh_route),
                    expected_size=file.size_bytes,
                    displayed_filename=file.name,
                    tqdm_class=_bar(arriving.add),
                )
            arriving.check_here(part)
            with part.open("rb") as came:
                finish(came)
        except BaseException:
            # Its chunks may have come in any order: nothing can go on from it.
            cache.remove(blobs, part.name)
            raise
        if is_new:
            with cache.create_file(blobs, cache.unshared_name(file), "wb"):
                pass
        os.replace(part.name, stored.blob.name, src_dir_fd=blobs, dst_dir_fd=blobs)
        if is_new:
            stored.publish()

    def _headers(self, url: str) -> dict[str, str]:
        """What the library sends; the token goes to no other host."""
        headers: dict[str, str] = build_hf_headers(
            token=False, library_name="sparkdeploy", library_version=__version__
        )
        return headers | authorization(url, self.hub.endpoint, self.hub.token)


def _linked(arriving: Arriving, stored: StoredBlob, blobs: int) -> bool:
    """Let a blob lead to its content in the shared store; False where none or a damaged one is."""
    if not stored.link():
        return False
    with contextlib.suppress(WrongContentError):
        arriving.check_here(stored.blob)
        return True
    console.warn(f"{stored.path} is damaged; {arriving.file.name} is fetched beside it")
    cache.remove(blobs, stored.blob.name)
    arriving.begin_anew()
    return False


def _is_there(arriving: Arriving, snapshot: Path) -> bool:
    """Whether a name of a snapshot leads to its content; one that leads elsewhere is removed."""
    path = snapshot / arriving.file.name
    if not os.path.lexists(path):
        return False
    try:
        arriving.check_here(path)
    except OSError as error:
        # What cannot be read is not known to be wrong.
        if error.errno not in {errno.ENOENT, errno.ELOOP}:
            raise
    except WrongContentError:
        pass
    else:
        return True
    cache.discard_file(arriving.file, snapshot)
    arriving.begin_anew()
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
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise RetryError(f"Xet: {said}") from error


@contextlib.contextmanager
def _kept_if_right(blobs: int, part: str) -> Iterator[None]:
    """Remove a part that turns out to be wrong: no later try could go on from it."""
    try:
        yield
    except WrongContentError:
        cache.remove(blobs, part)
        raise


@contextlib.contextmanager
def _library_lock(arriving: Arriving, root: Path) -> Iterator[None]:
    """Keep other programs from the same file, and wait for the one that brings it."""
    lock = root.parent / ".locks" / root.name / f"{arriving.file.blob_name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WeakFileLock(lock, timeout=LOCK_LOOK_S))
                break
            except Timeout:
                # Something comes, if not to us; and this is where a waiting thread learns to stop.
                arriving.add(0)
        yield


def _bar(count: Callable[[int], None]) -> type[Any]:
    """A class for the hub's library, which makes a progress bar of it for each file."""

    class CountingBar:
        def __init__(self, *_arguments: object, **_options: object) -> None: ...

        def __enter__(self) -> CountingBar:
            return self

        def __exit__(self, *_error: object) -> None: ...

        def update(self, more_bytes: float | None = 1) -> None:
            count(int(more_bytes or 0))

        def update_transfer(self, _more_bytes: float | None = 1) -> None:
            """What comes over the line is not counted: it is packed, and may be less."""

        def set_postfix_str(self, _text: str, refresh: bool = True) -> None: ...

        set_transfer_postfix_str = set_postfix_str

        def refresh(self) -> None: ...

        close = refresh

    return CountingBar
