"""The Hugging Face hub: what a repository holds, and where its files are read.

What a hub answers is JSON that a stranger wrote: it is read into facts, or refused.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from sparkdeploy.checkpoint import repo_files
from sparkdeploy.checkpoint.addresses import is_web_address
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, hostile, printable, shown
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import LOGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from huggingface_hub import ModelInfo
    from huggingface_hub.hf_api import RepoSibling

    from sparkdeploy.settings import Settings

T = TypeVar("T")
ATTEMPTS = 6
LONGEST_WAIT_S = 30.0
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_CLOSED = frozenset({401, 403})
_LICENSE_LIMIT = 100
_TOKEN = re.compile("[!-~]+")


class RetryError(Exception):
    """A failure that may pass, with the server's own word on when."""

    def __init__(self, reason: str, retry_after: str | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub that answers at `endpoint`, and the cache its downloads go to.

    Every method tries again after 429, 5xx and broken connections, waiting as long as the hub
    says, and raises CheckpointError when it stays so, and at once when access is not granted.
    """

    endpoint: str
    cache: Path
    token: str | None = None
    sleep: Callable[[float], None] = time.sleep
    attempts: int = ATTEMPTS

    def describe(self, repo: str, revision: str, *, all_files: bool = False) -> RepoFacts:
        """Resolve a branch, tag or commit, and list the files of it that vLLM reads, or all."""
        from sparkdeploy.checkpoint.hub_client import listing_of  # noqa: PLC0415 - takes 0.3 s

        repo_files.check_repo(repo)
        repo_files.check_revision(repo, revision)
        refuse_offline(repo)
        facts = self.retried(
            lambda: listing_of(self, repo, revision),
            lambda error: CheckpointError(
                f"{repo}: {self.endpoint} does not answer as a hub should.",
                hint="check the network; what has come so far is kept for the next try",
                detail=printable(str(error)),
            ),
        )
        return facts if all_files else facts.of_one_format()

    def retried(self, ask: Callable[[], T], failed: Callable[[RetryError], CheckpointError]) -> T:
        """Return what `ask` returns; after the last RetryError of it raise what `failed` makes."""
        failures = 0
        while True:
            try:
                return ask()
            except RetryError as error:
                failures += 1
                self.wait_after(failures, error, failed(error))

    def url(self, repo: str, commit: str, name: str) -> str:
        return f"{self.endpoint}/{repo}/resolve/{commit}/{quote(name)}"

    def check_status(self, repo: str, status: int, headers: Mapping[str, str], what: str) -> None:
        """Raise CheckpointError for 401, 403 and 404, and RetryError for what may pass."""
        if status in _CLOSED:
            raise CheckpointError(
                f"{repo}: the hub does not let this machine read it (HTTP {status}).",
                hint=f"ask for access at {self.endpoint}/{repo}, then `hf auth login`; "
                "or it is misspelt",
            )
        if status == 404:
            raise CheckpointError(
                f"{repo}: {self.endpoint} has no such repository, revision or file: {what}.",
                hint="check the name and the revision",
            )
        if status in _PASSING:
            raise RetryError(f"HTTP {status}", headers.get("Retry-After"))

    def wait_after(self, failures: int, error: Exception, failed: CheckpointError) -> None:
        """Wait what the server says, else 0.5, 1, 2, ... s; raise `failed` after the last try."""
        if failures >= self.attempts:
            raise failed from error
        asked = getattr(error, "retry_after", None) or ""
        wait_s = float(asked) if asked.isdecimal() else 0.5 * 2 ** max(0, failures - 1)
        self.sleep(min(wait_s, LONGEST_WAIT_S))


def refuse_offline(repo: str) -> None:
    """Raise CheckpointError when the user has told the hub's own tools to ask nobody."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise CheckpointError(
            f"{repo}: HF_HUB_OFFLINE is set, and the hub would have to be asked.",
            hint="unset HF_HUB_OFFLINE",
        )


def open_hub(settings: Settings) -> Hub:
    """The hub of HF_ENDPOINT, HF_TOKEN and HF_HOME; CheckpointError for an unusable one of them."""
    from huggingface_hub import get_token  # noqa: PLC0415 - takes 0.3 s to import

    token = get_token()
    if token and not _TOKEN.fullmatch(token):
        # The libraries would print it.
        raise CheckpointError(
            "the hub's token holds what no HTTP header can; it has letters, digits and signs of "
            "ASCII.",
            hint="set HF_TOKEN anew, or `hf auth login`",
        )
    return Hub(_endpoint(settings), settings.hub_cache, token)


def _endpoint(settings: Settings) -> str:
    named = "HF_ENDPOINT"
    endpoint = os.environ.get(named, "")
    if not endpoint:
        named, endpoint = f"hub ({settings.sources.get('hub', 'default')})", settings.hosts.hub
    if not is_web_address(endpoint):
        raise CheckpointError(
            f"{named} is {shown(LOGIN.sub('//***@', endpoint))}, which is no address of a hub.",
            hint="set it to http:// or https:// and a host, or leave it out",
        )
    return endpoint.rstrip("/")


def read_listing(repo: str, revision: str, described: ModelInfo) -> RepoFacts:
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
