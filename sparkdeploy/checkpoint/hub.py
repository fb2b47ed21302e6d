"""The Hugging Face hub: what a repository holds, and its files; the only user of its library."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.settings import Settings

ATTEMPTS = 6
LONGEST_WAIT_S = 30.0
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_CLOSED = frozenset({401, 403})

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file as the hub describes it; a large one has a sha256, a small one git's own sha1."""

    name: str
    size_bytes: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True, slots=True)
class RepoFacts:
    """A repository at one commit."""

    repo: str
    revision: str
    """The branch, tag or commit that was asked for."""
    commit: str
    license: str | None
    files: tuple[RepoFile, ...]

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files)


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

        Raises CheckpointError for a repository that is not there, not ours to read, or silent.
        """
        from huggingface_hub import HfApi  # noqa: PLC0415 - takes 0.3 s to import

        api = HfApi(endpoint=self.endpoint, token=self.token or False)
        info = self._patiently(
            repo, lambda: api.model_info(repo, revision=revision, files_metadata=True, timeout=30)
        )
        if info.sha is None:
            raise CheckpointError(f"{repo}: {self.endpoint} names no commit for {revision}.")
        files = tuple(_file(repo, sibling) for sibling in info.siblings or ())
        return RepoFacts(repo, revision, info.sha, _license_of(info), files)

    def point_branch(self, facts: RepoFacts) -> None:
        """Let the cache's own record of the branch name this commit, for other programs' sake."""
        if facts.revision == facts.commit:
            return
        reference = repo_folder(self.cache, facts.repo) / "refs" / facts.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(facts.commit, encoding="ascii")

    def url(self, repo: str, commit: str, name: str) -> str:
        """Where a file of a commit is read."""
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 - takes 0.3 s to import

        return hf_hub_url(repo, name, revision=commit, endpoint=self.endpoint)

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

    def _patiently(self, repo: str, call: Callable[[], Result]) -> Result:
        for attempt in range(1, self.attempts + 1):
            try:
                return call()
            except _transport_errors() as error:
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
    """The hub of this user: HF_ENDPOINT, HF_TOKEN and HF_HOME as the hub's own tools read them."""
    from huggingface_hub import get_token  # noqa: PLC0415 - takes 0.3 s to import

    endpoint = os.environ.get("HF_ENDPOINT") or settings.hosts.hub
    return Hub(endpoint.rstrip("/"), settings.hub_cache, get_token())


def repo_folder(cache: Path, repo: str) -> Path:
    """The repository's folder in a cache.

    Raises CheckpointError for a name with `--`: the cache writes `/` so, and two would be one.
    """
    if repo.count("/") != 1 or "--" in repo or ".." in repo:
        raise CheckpointError(f"{repo!r} is no ORGANISATION/NAME that a hub cache can hold.")
    return cache / f"models--{repo.replace('/', '--')}"


def wait_s(attempt: int, retry_after: str | None) -> float:
    """How long to wait after a failed attempt: what the server says, else 0.5, 1, 2, ... s."""
    if retry_after is not None and retry_after.isdecimal():
        return min(float(retry_after), LONGEST_WAIT_S)
    return float(min(0.5 * 2 ** (attempt - 1), LONGEST_WAIT_S))


def _file(repo: str, sibling: Any) -> RepoFile:  # noqa: ANN401 - the library's own type
    if sibling.size is None:
        raise CheckpointError(f"{repo}: the hub states no size for {sibling.rfilename}.")
    if sibling.lfs is not None:
        return RepoFile(sibling.rfilename, sibling.size, sibling.lfs.sha256, None)
    return RepoFile(sibling.rfilename, sibling.size, None, sibling.blob_id)


def _license_of(info: Any) -> str | None:  # noqa: ANN401 - the library's own type
    card = info.card_data
    stated = None if card is None else card.to_dict().get("license")
    if isinstance(stated, str):
        return stated
    tags = [tag for tag in info.tags or () if tag.startswith("license:")]
    return tags[0].removeprefix("license:") if tags else None


def _transport_errors() -> tuple[type[Exception], ...]:
    """Everything a request can end with: the library's errors share a base with its transport's."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - takes 0.3 s to import

    return (*(base for base in HfHubHTTPError.__bases__ if base is not OSError), OSError)


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
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
