"""One file from a hub to this disk: the hub's own library transfers it, and its hash is held.

Its functions are called one by one. Its hf_hub_download (huggingface_hub 2.4) begins a file anew
after every break, and lets an answer name the file it writes; here a part is resumed, by another
process as well, and every name comes from the listing that was checked.

Importing it takes the 0.3 s that the library takes, so that only a download does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn

from filelock import Timeout
from httpx2 import HTTPError, TransportError
from huggingface_hub import constants, file_download, get_hf_file_metadata
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import WeakFileLock, build_hf_headers
from huggingface_hub.utils._xet import abort_xet_session

from sparkdeploy import __version__
from sparkdeploy.bounded_http import CHUNK_BYTES
from sparkdeploy.checkpoint import cache
from sparkdeploy.checkpoint.answers import authorization, is_followed, is_same_host
from sparkdeploy.checkpoint.arriving import HashedPart, WrongContentError
from sparkdeploy.checkpoint.durable import finish
from sparkdeploy.checkpoint.hub import RetryError
from sparkdeploy.checkpoint.repo_files import printable, shown
from sparkdeploy.checkpoint.shared_store import StoredBlob
from sparkdeploy.console import console
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from huggingface_hub import HfFileMetadata
    from huggingface_hub.utils import XetFileData

    from sparkdeploy.checkpoint.arriving import Arriving
    from sparkdeploy.checkpoint.hub import Hub
    from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile

CONNECTIONS = 8
"""Files that come at the same time; as many as the hub's own library takes."""
LOCK_LOOK_S = 5.0
XET_FAILURES = 2
"""After so many in a row a file comes over HTTP: a mirror may name a store that nobody reaches."""
# What is lost when a connection breaks, and ten megabytes are much of a slow line.
constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
_OTHERS_HINT = "check that HF_ENDPOINT, proxies and the network are yours"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Brings files of one commit; any number of threads may call it."""

    hub: Hub
    facts: RepoFacts
    _connections: threading.Semaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(CONNECTIONS)
    )
    """Held while bytes come, and not while a file is hashed or synced."""

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
        failures, most_bytes = 0, 0
        while True:
            arriving.begin_anew()
            try:
                self._try(arriving, root, blobs, failures)
            except RetryError as broken:
                # What brings bytes is no failure, however often it breaks.
                failures = 0 if arriving.came_bytes > most_bytes else failures + 1
                most_bytes = max(most_bytes, arriving.came_bytes)
                failed = CheckpointError(
                    f"{self.facts.repo}: {arriving.file.name} does not come: "
                    f"{printable(str(broken))}",
                    hint="check the network; what has come so far is kept",
                )
                self.hub.wait_after(failures, broken, failed)
            else:
                return

    def _try(self, arriving: Arriving, root: Path, blobs: int, failures: int) -> None:
        described = self._describe(arriving.file)
        xet = described.xet_file_data if file_download.is_xet_available() else None
        if xet is not None and failures < XET_FAILURES:
            self._by_xet(arriving, xet, root, blobs)
        else:
            self._by_http(arriving, described, blobs)

    def _describe(self, file: RepoFile) -> HfFileMetadata:
        """What the hub says of a file now; CheckpointError when its list said otherwise."""
        url = self.hub.url(self.facts.repo, self.facts.commit, file.name)
        with self._errors_of(file, url):
            found = get_hf_file_metadata(
                url, token=self.hub.token or False, endpoint=self.hub.endpoint
            )
        listed = (self.facts.commit, file.sha256, file.size_bytes)
        for said, expected in zip((found.commit_hash, found.etag, found.size), listed, strict=True):
            if None not in (said, expected) and said != expected:
                raise CheckpointError(
                    f"{self.facts.repo}: {file.name} is not the one of {self.facts.commit[:12]}: "
                    f"the hub now states {shown(said)}, and its list {shown(expected)}.",
                    hint=_OTHERS_HINT,
                )
        named = [found.location]
        if found.xet_file_data is not None:
            named.append(found.xet_file_data.refresh_route)
        for address in named:
            if not is_followed(url, address):
                raise CheckpointError(
                    f"{self.facts.repo}: the hub sends to {shown(address)} for {file.name}, "
                    "which is not followed.",
                    hint=_OTHERS_HINT,
                )
        return found

    def _by_http(self, arriving: Arriving, described: HfFileMetadata, blobs: int) -> None:
        file, part = arriving.file, cache.part_name(arriving.file)
        if not cache.part_bytes(file, part, folder=blobs):
            cache.remove(blobs, part)
        with _kept_if_right(blobs, part):
            with cache.create_file(blobs, part, "a+b") as target:
                coming = HashedPart(target, arriving)
                if arriving.came_bytes < file.size_bytes:
                    self._get(described.location, coming, arriving)
                finish(target)
            coming.check()
        os.replace(part, file.blob_name, src_dir_fd=blobs, dst_dir_fd=blobs)

    def _get(self, url: str, coming: HashedPart, arriving: Arriving) -> None:
        with self._connections, self._errors_of(arriving.file, url):
            # Its size is left for us to check: the library has no words for a person.
            file_download.http_get(
                url,
                coming,  # type: ignore[arg-type] # it is all of a file that is used
                resume_size=arriving.came_bytes,
                headers=self._headers(url),
                displayed_filename=arriving.file.name,
                tqdm_class=_bar(lambda _bytes: None),
            )

    def _by_xet(self, arriving: Arriving, xet: XetFileData, root: Path, blobs: int) -> None:
        file, blob = arriving.file, root / cache.BLOBS / arriving.file.blob_name
        stored = StoredBlob(blob, xet.file_hash, file.size_bytes)
        is_linked = stored.link()
        if is_linked:
            with contextlib.suppress(WrongContentError):
                arriving.check_here(blob)
                return
            console.warn(f"{stored.path} is damaged; {file.name} is fetched beside it")
            cache.remove(blobs, blob.name)
            arriving.begin_anew()
        part = blob.with_name(cache.part_name(file))
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
        if not is_linked:
            with cache.create_file(blobs, cache.unshared_name(file), "wb"):
                pass
        os.replace(part.name, blob.name, src_dir_fd=blobs, dst_dir_fd=blobs)
        if not is_linked:
            stored.publish()

    def _headers(self, url: str) -> dict[str, str]:
        """What the library sends; the token goes to no other host."""
        headers: dict[str, str] = build_hf_headers(
            token=False, library_name="sparkdeploy", library_version=__version__
        )
        # A little of a compressed body may become a lot.
        headers["accept-encoding"] = "identity"
        return headers | authorization(url, self.hub.endpoint, self.hub.token)

    @contextlib.contextmanager
    def _errors_of(self, file: RepoFile, url: str) -> Iterator[None]:
        """Say what an answer, or its absence, means for a file that was asked for at `url`."""
        try:
            yield
        except HfHubHTTPError as error:
            self._refuse(file, url, error.response.status_code, error.response.headers)
        except TransportError as error:
            raise RetryError(str(error) or type(error).__name__) from error
        except (HTTPError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                # Of this disk.
                raise
            # What the libraries say of an answer that breaks the rules of HTTP.
            said = printable(next(iter(str(error).splitlines()), type(error).__name__))
            raise CheckpointError(
                f"{self.facts.repo}: {file.name} does not come: {said}", hint=_OTHERS_HINT
            ) from error

    def _refuse(
        self, file: RepoFile, url: str, status: int, headers: Mapping[str, str]
    ) -> NoReturn:
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise WrongContentError(f"{file.name} is shorter there than what has come of it.")
        if not is_same_host(url, self.hub.endpoint):
            # The address was made for a while; the hub is asked for another one.
            raise RetryError(f"HTTP {status}", headers.get("Retry-After"))
        self.hub.check_status(self.facts.repo, status, headers, file.name)
        raise CheckpointError(
            f"{self.facts.repo}: {file.name} does not come: HTTP {status}.", hint=_OTHERS_HINT
        )


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
