"""The Hugging Face hub: what a repository holds, and its files; the only user of its library."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from sparkdeploy.checkpoint.answers import HubSession, body, is_web_address, open_answer
from sparkdeploy.checkpoint.cache import create_file, open_folder_inside
from sparkdeploy.checkpoint.durable import disk_errors
from sparkdeploy.checkpoint.repo_files import (
    FILES_LIMIT,
    HOSTILE_HINT,
    RepoFacts,
    RepoFile,
    check_commit,
    check_repo,
    check_revision,
    is_commit,
    printable,
    shown,
)
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import LOGIN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.settings import Settings

ATTEMPTS = 6
LONGEST_WAIT_S = 30.0
LISTING_LIMIT_S = 60.0
"""For one try of a listing, from the first redirect to the last byte."""
_TOKEN = re.compile("[!-~]+")
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_CLOSED = frozenset({401, 403})

Result = TypeVar("Result")


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
        """Resolve a branch, tag or commit, and list the files of that commit.

        Raises CheckpointError for a repository that is not there, not ours to read, or silent, and
        for a listing in which anything is not as a hub states it.
        """
        check_repo(repo)
        check_revision(repo, revision)
        if _is_offline():
            raise CheckpointError(
                f"{repo}: HF_HUB_OFFLINE is set, and the hub would have to be asked.",
                hint="unset HF_HUB_OFFLINE",
            )
        text = self._patiently(repo, lambda: self._listing(repo, revision))
        return read_listing(repo, revision, text)

    def point_branch(self, facts: RepoFacts) -> None:
        """Let the cache's own record of the branch name this commit, for other programs' sake."""
        if facts.revision == facts.commit:
            return
        root = repo_folder(self.cache, facts.repo)
        *folders, name = facts.revision.split("/")
        with (
            disk_errors(str(root / "refs" / facts.revision)),
            open_folder_inside(root, ("refs", *folders)) as folder,
            create_file(folder, name, "wb") as reference,
        ):
            reference.write(facts.commit.encode())

    def url(self, repo: str, commit: str, name: str) -> str:
        """Where a file of a commit is read."""
        return f"{self.endpoint}/{repo}/resolve/{commit}/{quote(name)}"

    def access_error(self, repo: str, status: int) -> CheckpointError:
        """What 401 and 403 mean, and the page that helps."""
        page = f"{self.endpoint}/{repo}"
        return CheckpointError(
            f"{repo}: the hub does not let this machine read it (HTTP {status}).",
            hint=f"ask for access at {page}, then `hf auth login`; or it is misspelt",
        )

    def missing_error(self, repo: str, detail: str | None = None) -> CheckpointError:
        """What 404 means."""
        return CheckpointError(
            f"{repo}: {self.endpoint} has no such repository, revision or file.",
            hint="check the name and the revision",
            detail=detail,
        )

    def _listing(self, repo: str, revision: str) -> bytes:
        """The API's answer, as long as it is one that can be read in little memory."""
        url = f"{self.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        text = bytearray()
        session = HubSession()
        session.deadline.allow(LISTING_LIMIT_S)
        with session, open_answer(session, url, headers, repo) as answer:
            answer.response.raise_for_status()
            for chunk in body(answer):
                text += chunk
                if len(text) > LISTING_LIMIT_BYTES:
                    raise CheckpointError(
                        f"{repo}: the hub's list of files has more than "
                        f"{LISTING_LIMIT_BYTES} bytes.",
                        hint=HOSTILE_HINT,
                    )
        return bytes(text)

    def _patiently(self, repo: str, call: Callable[[], Result]) -> Result:
        for attempt in range(1, self.attempts + 1):
            try:
                return call()
            except OSError as error:
                status, retry_after = _answer_of(error)
                if status in _CLOSED:
                    raise self.access_error(repo, status) from error
                passes = status is None or status in _PASSING
                if not passes or attempt == self.attempts:
                    raise self._failed(repo, status, error) from error
                self.sleep(wait_s(attempt, retry_after))
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    def _failed(self, repo: str, status: int | None, error: Exception) -> CheckpointError:
        if status == 404:
            return self.missing_error(repo, _first_line(error))
        return CheckpointError(
            f"{repo}: {self.endpoint} does not answer as a hub should.",
            hint="check the network; what has come so far is kept, and the next try goes on",
            detail=_first_line(error),
        )


def open_hub(settings: Settings) -> Hub:
    """The hub of this user: HF_ENDPOINT, HF_TOKEN and HF_HOME as the hub's own tools read them.

    Raises CheckpointError for an address that is none of the web's, and for a token that could not
    be sent.
    """
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
            f"{named} is {shown(LOGIN.sub('//***@', endpoint))}, and a hub is reached by HTTP.",
            hint="set it to http:// or https:// and a host, or leave it out",
        )
    return endpoint.rstrip("/")


def repo_folder(cache: Path, repo: str) -> Path:
    """The repository's folder in a cache.

    Raises CheckpointError for a name with `--`: the cache writes `/` so, and two would be one.
    """
    check_repo(repo)
    return cache / f"models--{repo.replace('/', '--')}"


def wait_s(attempt: int, retry_after: str | None) -> float:
    """How long to wait after a failed attempt: what the server says, else 0.5, 1, 2, ... s."""
    if retry_after is not None and retry_after.isdecimal():
        return min(float(retry_after), LONGEST_WAIT_S)
    return float(min(0.5 * 2 ** (attempt - 1), LONGEST_WAIT_S))


def _is_offline() -> bool:
    """Whether the user has told the hub's own tools to stay off the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _answer_of(error: BaseException) -> tuple[int | None, str | None]:
    """The HTTP status and Retry-After behind an error, through the errors that caused it."""
    found: BaseException | None = error
    while found is not None:
        response = getattr(found, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int):
            return status, response.headers.get("Retry-After")  # type: ignore[union-attr]
        found = found.__cause__
    return None, None


def _first_line(error: BaseException) -> str:
    return printable(next(iter(str(error).strip().splitlines()), type(error).__name__))


LISTING_LIMIT_BYTES = 4 << 20
"""Ten thousand files take three of them. Python needs up to 24 times as much for hostile JSON."""
_LICENSE_LIMIT = 100


def read_listing(repo: str, revision: str, text: bytes) -> RepoFacts:
    """Return what a listing states of a commit.

    Raises CheckpointError, naming repository and file, when anything in it is not as a hub states
    it, or when it describes another commit than the one that was asked for.
    """
    content = _object(repo, text)
    commit = content.get("sha")
    check_commit(repo, commit)
    if is_commit(revision) and commit != revision:
        raise CheckpointError(
            f"{repo}: the hub was asked for {revision} and describes {commit}.", hint=HOSTILE_HINT
        )
    siblings = content.get("siblings")
    if not isinstance(siblings, list) or not siblings:
        raise _malformed(repo, "it lists no files")
    if len(siblings) > FILES_LIMIT:
        raise _malformed(repo, f"it has {len(siblings)} files, more than {FILES_LIMIT}")
    files = tuple(_file(repo, sibling) for sibling in siblings)
    return RepoFacts(repo, revision, str(commit), _license_of(content), files)


def _object(repo: str, text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(repo, "it is no JSON") from error
    if not isinstance(content, dict):
        raise _malformed(repo, "it is no JSON object")
    return content


def _file(repo: str, sibling: object) -> RepoFile:
    if not isinstance(sibling, dict):
        raise _malformed(repo, "a file of it is no object")
    large = sibling.get("lfs")
    if large is not None and not isinstance(large, dict):
        raise _malformed(repo, "lfs of a file is no object")
    try:
        if large:
            return RepoFile(*_stated(sibling), large.get("sha256"), None)
        return RepoFile(*_stated(sibling), None, sibling.get("blobId"))
    except CheckpointError as error:
        raise CheckpointError(f"{repo}: {error.message}", hint=error.hint) from error


def _stated(sibling: dict[str, Any]) -> tuple[Any, Any]:
    """Name and size, whatever they are."""
    return sibling.get("rfilename"), sibling.get("size")


def _license_of(content: dict[str, Any]) -> str | None:
    """What the card says, or a tag; None for what nobody could read on a terminal."""
    card = content.get("cardData")
    stated = card.get("license") if isinstance(card, dict) else None
    if not isinstance(stated, str):
        tags = content.get("tags")
        named = [
            tag.removeprefix("license:")
            for tag in (tags if isinstance(tags, list) else [])
            if isinstance(tag, str) and tag.startswith("license:")
        ]
        stated = named[0] if named else ""
    is_plain = stated.isprintable() and 0 < len(stated) <= _LICENSE_LIMIT
    return stated if is_plain else None


def _malformed(repo: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{repo}: the hub's answer is not the description of a repository: {problem}.",
        hint=HOSTILE_HINT,
    )
