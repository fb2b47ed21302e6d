"""The Hugging Face hub: its address, its token, and when a request is tried again."""

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

from urllib3.util import parse_url

from sparkdeploy.checkpoint import repo_files
from sparkdeploy.checkpoint.repo_files import RepoFacts, printable, shown
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import LOGIN, Settings

T = TypeVar("T")
ATTEMPTS = 6
LONGEST_WAIT_S = 30.0
KEPT_HINT = "check the network; what was downloaded so far is kept"
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_CLOSED = frozenset({401, 403})
_TOKEN = re.compile("[!-~]+")
_PORTS = {"http": 80, "https": 443}


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

    def describe(
        self, repo: str, revision: str, *, all_files: bool = False, folders: Collection[str] = ()
    ) -> RepoFacts:
        """Resolve a branch, tag or commit, and list the files of it that vLLM reads, or all.

        Of models in folders those of `folders` are listed.
        """
        from sparkdeploy.checkpoint.hub_client import listing_of  # noqa: PLC0415 - takes 0.3 s

        repo_files.check_repo(repo)
        repo_files.check_revision(repo, revision)
        refuse_offline(repo)
        facts = self.retried(
            lambda: listing_of(self, repo, revision),
            lambda error: CheckpointError(
                f"{repo}: {self.endpoint} does not answer as a hub should.",
                hint=KEPT_HINT,
                detail=printable(error),
            ),
        )
        return facts if all_files else facts.of_one_format(folders)

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


def download_failed(
    repo: str, what: str, error: Exception, hint: str = KEPT_HINT
) -> CheckpointError:
    return CheckpointError(
        f"{repo}: download of {what} failed: {printable(first_line(error))}", hint=hint
    )


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def refuse_offline(repo: str) -> None:
    """Raise CheckpointError when the user has told the hub's own tools to ask nobody."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise CheckpointError(
            f"{repo}: the hub would have to be asked, and --offline or HF_HUB_OFFLINE forbids it.",
            hint="leave out --offline, or `unset HF_HUB_OFFLINE`",
        )


def open_hub(settings: Settings) -> Hub:
    """The hub of HF_ENDPOINT, HF_TOKEN and HF_HOME; CheckpointError for an unusable one of them."""
    endpoint = _endpoint(settings)
    try:
        from huggingface_hub import get_token  # noqa: PLC0415 - takes 0.3 s to import
    except ValueError as error:
        # It reads its variables while it is imported.
        raise CheckpointError(
            f"a variable of the hub's library holds what it cannot read: {printable(str(error))}",
            hint="`env | grep ^HF_` shows them",
        ) from error
    token = get_token()
    if token and not _TOKEN.fullmatch(token):
        # The libraries would print it.
        raise CheckpointError(
            "the hub's token holds what no HTTP header can; it has letters, digits and signs of "
            "ASCII.",
            hint="set HF_TOKEN anew, or `hf auth login`",
        )
    return Hub(endpoint, settings.hub_cache, token)


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


def is_web_address(url: str) -> bool:
    """Whether a URL is http:// or https:// with a host that could be looked up."""
    try:
        host = parse_url(url).host or ""
        # The HTTP libraries do so on their way to a name server, and have no error for it.
        host.encode("idna")
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(host) and parts.port != 0
    except ValueError:
        return False


def is_followed(asked: str, target: str) -> bool:
    """Whether a redirect leads to a web address, and not from HTTPS to HTTP."""
    is_weaker = asked.startswith("https:") and urlsplit(target).scheme == "http"
    return is_web_address(target) and not is_weaker


def is_same_host(url: str, other: str) -> bool:
    """Whether both are on one host, port and scheme; False for what can be read in two ways."""
    origin = _origin(url)
    return origin is not None and origin == _origin(other)


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    is_plain = set(parts.netloc).isdisjoint("@\\ \t\r\n") and parts.netloc.isascii()
    if port is None or not parts.hostname or not is_plain:
        return None
    return parts.scheme, parts.hostname, port


def authorization(url: str, endpoint: str, token: str | None) -> dict[str, str]:
    """Return the header with the hub's token for its own host: an answer may name any address."""
    is_for_hub = token and is_same_host(url, endpoint)
    return {"Authorization": f"Bearer {token}"} if is_for_hub else {}
