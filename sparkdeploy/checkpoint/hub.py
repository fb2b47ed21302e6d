"""The Hugging Face hub: what a repository holds, and where its files are read.

What a hub answers is JSON that a stranger wrote: it is read into facts, or refused.
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from sparkdeploy.bounded_http import AnswerTooLargeError, BoundedSession, chunks
from sparkdeploy.checkpoint import repo_files
from sparkdeploy.checkpoint.answers import authorization, is_web_address, open_answer
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, hostile, printable, shown
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import LOGIN, Settings

ATTEMPTS = 6
LONGEST_WAIT_S = 30.0
LISTING_LIMIT_S = 60.0
"""For one try of a listing, from the first redirect to the last byte."""
LISTING_LIMIT_BYTES = 4 << 20
"""Ten thousand files take three of them. Python needs up to 24 times as much for hostile JSON."""
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

    def describe(self, repo: str, revision: str) -> RepoFacts:
        """Resolve a branch, tag or commit, and list the files of that commit."""
        repo_files.check_repo(repo)
        repo_files.check_revision(repo, revision)
        refuse_offline(repo)
        return read_listing(repo, revision, self._patiently(repo, revision))

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

    def _listing(self, repo: str, revision: str) -> bytes:
        url = f"{self.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"
        headers = authorization(url, self.endpoint, self.token)
        session = BoundedSession(LISTING_LIMIT_S)
        with session, open_answer(session, url, headers, repo) as answer:
            response = answer.response
            self.check_status(repo, response.status_code, response.headers, revision)
            response.raise_for_status()
            try:
                return b"".join(chunks(response, LISTING_LIMIT_BYTES))
            except AnswerTooLargeError as error:
                raise hostile(
                    f"{repo}: the hub's list of files has more than {LISTING_LIMIT_BYTES} bytes."
                ) from error

    def _patiently(self, repo: str, revision: str) -> bytes:
        failures = 0
        while True:
            try:
                return self._listing(repo, revision)
            except (OSError, RetryError) as error:
                failures = self.attempts if isinstance(error, requests.HTTPError) else failures + 1
                said = next(iter(str(error).strip().splitlines()), type(error).__name__)
                failed = CheckpointError(
                    f"{repo}: {self.endpoint} does not answer as a hub should.",
                    hint="check the network; what has come so far is kept for the next try",
                    detail=printable(said),
                )
                self.wait_after(failures, error, failed)

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


def read_listing(repo: str, revision: str, text: bytes) -> RepoFacts:
    """Raises CheckpointError for what no hub states, and when it describes another commit."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(repo, "it is no JSON") from error
    if not isinstance(content, dict):
        raise _malformed(repo, "it is no JSON object")
    commit = content.get("sha")
    repo_files.check_commit(repo, commit)
    if repo_files.is_commit(revision) and commit != revision:
        raise hostile(f"{repo}: the hub was asked for {revision} and describes {commit}.")
    siblings = content.get("siblings")
    if not isinstance(siblings, list) or not siblings:
        raise _malformed(repo, "it lists no files")
    if len(siblings) > repo_files.FILES_LIMIT:
        raise _malformed(repo, f"it has {len(siblings)} files, more than {repo_files.FILES_LIMIT}")
    files = tuple(_file(repo, sibling) for sibling in siblings)
    return RepoFacts(repo, revision, str(commit), _license_of(content), files)


def _file(repo: str, sibling: object) -> RepoFile:
    if not isinstance(sibling, dict):
        raise _malformed(repo, "a file of it is no object")
    large = sibling.get("lfs")
    if large is not None and not isinstance(large, dict):
        raise _malformed(repo, "lfs of a file is no object")
    hashes = (large.get("sha256"), None) if large else (None, sibling.get("blobId"))
    try:
        # Name and size may be anything; the type itself refuses what no file has.
        return RepoFile(sibling.get("rfilename"), sibling.get("size"), *hashes)  # type: ignore[arg-type]
    except CheckpointError as error:
        raise CheckpointError(f"{repo}: {error.message}", hint=error.hint) from error


def _license_of(content: dict[str, Any]) -> str | None:
    """What the card says, or a tag; None for what nobody could read on a terminal."""
    card, tags = content.get("cardData"), content.get("tags")
    stated = card.get("license") if isinstance(card, dict) else None
    if not isinstance(stated, str):
        named = [tag for tag in (tags if isinstance(tags, list) else []) if isinstance(tag, str)]
        prefix = "license:"
        stated = next((tag[len(prefix) :] for tag in named if tag.startswith(prefix)), "")
    is_plain = stated.isprintable() and 0 < len(stated) <= _LICENSE_LIMIT
    return stated if is_plain else None


def _malformed(repo: str, problem: str) -> CheckpointError:
    return hostile(f"{repo}: the hub's answer is not the description of a repository: {problem}.")
