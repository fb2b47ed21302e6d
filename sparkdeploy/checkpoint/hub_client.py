"""Requests to a hub by the HTTP client of the hub's own library; importing it takes 0.3 s.

The client is set up here: it asks for no compression, follows no redirect to a weaker place, and
reads no more of an answer that is no file than such an answer has.
"""

import contextlib
import logging
from collections.abc import Iterator
from functools import cache, partial
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub import HfApi, ModelInfo, set_client_factory
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import get_session

from sparkdeploy.checkpoint import repo_files
from sparkdeploy.checkpoint.hub import (
    Hub,
    RetryError,
    authorization,
    download_failed,
    is_followed,
    is_same_host,
)
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, hostile, printable, shown
from sparkdeploy.checkpoint.threads import run_within
from sparkdeploy.errors import CheckpointError

CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 60.0
"""Without a byte."""
ANSWER_LIMIT_S = 60.0
ANSWER_LIMIT_BYTES = 4 << 20
"""A list of ten thousand files takes three of them. Hostile JSON takes 24 times as much memory."""
_LICENSE_LIMIT = 100
OTHERS_HINT = "check that HF_ENDPOINT, proxies and the network are yours"
# It warns of every broken connection, with addresses that let anyone download.
logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


class _RefusedError(CheckpointError):
    """An answer that breaks the rules of this file; who asked adds for what."""


class _BoundedBody(httpx2.SyncByteStream):
    """The body of an answer that is no file, of limited size."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        left_bytes = ANSWER_LIMIT_BYTES
        for chunk in self._stream:
            left_bytes -= len(chunk)
            if left_bytes < 0:
                raise _RefusedError(
                    f"the hub's answer has more than {ANSWER_LIMIT_BYTES} bytes.", hint=OTHERS_HINT
                )
            yield chunk

    def close(self) -> None:
        self._stream.close()


def new_client(transport: httpx2.BaseTransport | None = None) -> httpx2.Client:
    return httpx2.Client(
        # A little of a compressed body may become a lot.
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [_check_answer]},
        follow_redirects=True,
        timeout=httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        transport=transport,
    )


@cache
def prepare_client() -> None:
    """Let the library make all its requests by a client of ours."""
    set_client_factory(new_client)


def _check_answer(response: httpx2.Response) -> None:
    asked = str(response.request.url)
    location = response.headers.get("Location")
    if response.is_redirect and location:
        _check_redirect(asked, location)
    coding = response.headers.get("Content-Encoding", "identity")
    if response.is_success and coding.lower() != "identity":
        raise _RefusedError(
            f"the body is encoded as {shown(coding)}, and identity was asked for.",
            hint="check the proxy between this machine and the hub",
        )
    if not response.is_success or "/api/models/" in response.request.url.path:
        stream = response.stream
        assert isinstance(stream, httpx2.SyncByteStream)  # noqa: S101 - the client is synchronous
        response.stream = _BoundedBody(stream)


def _check_redirect(asked: str, location: str) -> None:
    target = ""
    with contextlib.suppress(ValueError):
        target = urljoin(asked, location)
    # An address that can be read in two ways is on no host, not even its own.
    if not is_followed(asked, target) or not is_same_host(target, target):
        raise _RefusedError(
            f"the hub sends to {shown(location)}, which is not followed from "
            f"{urlsplit(asked).scheme}.",
            hint=OTHERS_HINT,
        )


def listing_of(hub: Hub, repo: str, revision: str) -> RepoFacts:
    """Ask once which files a repository has; RetryError for what may pass."""
    prepare_client()
    with library_errors(hub, repo, revision):
        try:
            api = HfApi(hub.endpoint, hub.token or False)
            ask = partial(api.model_info, repo, revision=revision, files_metadata=True)
            return _listing(repo, revision, run_within(ANSWER_LIMIT_S, ask))
        except TimeoutError as error:
            raise RetryError(f"it took longer than {ANSWER_LIMIT_S:g} s") from error
        # What the library makes of JSON that describes no repository.
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise hostile(
                f"{repo}: the hub's answer is not the description of a repository: "
                f"{printable(error)}."
            ) from error


@contextlib.contextmanager
def open_file(
    hub: Hub, repo: str, file: str, url: str, byte_range: tuple[int, int] | None
) -> Iterator[httpx2.Response]:
    """Ask for a file or a range of it; RetryError for what may pass."""
    prepare_client()
    headers = authorization(url, hub.endpoint, hub.token)
    if byte_range is not None:
        headers["Range"] = f"bytes={byte_range[0]}-{byte_range[1] - 1}"
    with (
        library_errors(hub, repo, file),
        get_session().stream("GET", url, headers=headers) as response,
    ):
        yield response


@contextlib.contextmanager
def library_errors(hub: Hub, repo: str, what: str) -> Iterator[None]:
    """Say of an answer, or of its absence, what it means for what was asked for."""
    try:
        yield
    except _RefusedError as error:
        raise CheckpointError(f"{repo}: {error.message}", hint=error.hint) from error
    except HfHubHTTPError as error:
        hub.check_status(repo, error.response.status_code, error.response.headers, what)
        status = RetryError(f"HTTP {error.response.status_code}")
        raise download_failed(repo, shown(what), status, OTHERS_HINT) from error
    except httpx2.TransportError as error:
        raise RetryError(str(error) or type(error).__name__) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            # Of this disk.
            raise
        raise download_failed(repo, shown(what), error, OTHERS_HINT) from error


def _listing(repo: str, revision: str, described: ModelInfo) -> RepoFacts:
    """Raise CheckpointError for what no hub states, and when it describes another commit."""
    commit, listed = described.sha, described.siblings
    repo_files.check_commit(repo, commit)
    if repo_files.is_commit(revision) and commit != revision:
        raise hostile(f"{repo}: the hub was asked for {revision} and describes {commit}.")
    if not listed:
        raise hostile(f"{repo}: the hub lists no files.")
    if len(listed) > repo_files.FILES_LIMIT:
        raise hostile(f"{repo}: the hub lists more than {repo_files.FILES_LIMIT} files.")
    # Name, size and hashes may be anything; RepoFile refuses what no file has.
    files = tuple(_file(repo, sibling) for sibling in listed)
    return RepoFacts(repo, revision, str(commit), _license_of(described), files)


def _file(repo: str, listed: RepoSibling) -> RepoFile:
    hashes = (None, listed.blob_id) if listed.lfs is None else (listed.lfs.sha256, None)
    try:
        # Name and size may be anything; the type itself refuses what no file has.
        return RepoFile(listed.rfilename, listed.size, *hashes)  # type: ignore[arg-type]
    except CheckpointError as error:
        raise CheckpointError(f"{repo}: {error.message}", hint=error.hint) from error


def _license_of(described: ModelInfo) -> str | None:
    """What the card says, or a tag; None for what nobody could read on a terminal."""
    stated = described.card_data.get("license") if described.card_data else None
    if not isinstance(stated, str):
        tags: list[object] = list(described.tags or ())
        named = (tag for tag in tags if isinstance(tag, str))
        prefix = "license:"
        stated = next((tag[len(prefix) :] for tag in named if tag.startswith(prefix)), "")
    is_plain = stated.isprintable() and 0 < len(stated) <= _LICENSE_LIMIT
    return stated if is_plain else None
