"""One GET of a hub: redirects are counted, their bodies unread, and a token stays with its host."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import requests
from requests.utils import requote_uri
from urllib3.util import parse_url

from sparkdeploy.bounded_http import BoundedSession
from sparkdeploy.checkpoint.repo_files import shown
from sparkdeploy.errors import CheckpointError

TIMEOUT_S = (15.0, 60.0)
"""Until a connection stands, and until the next bytes come."""
REDIRECTS_LIMIT = 10
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """What came at last, its body unread, and the headers of the hub's own answer before it."""

    response: requests.Response
    first_headers: Mapping[str, str]
    place: str | None
    """Where redirects led to; None without one."""


@contextlib.contextmanager
def open_answer(
    session: BoundedSession, url: str, headers: Mapping[str, str], what: str
) -> Iterator[HubAnswer]:
    """Ask for `url`, which errors call `what`, and close the answer when the block ends.

    A redirect to another host, port or scheme is followed without Authorization. Raises
    CheckpointError for redirects without an end, to what is not HTTP or from HTTPS to HTTP, and for
    a compressed body, of which a little may become a lot; requests.RequestException for an answer
    that is broken, or does not come in time.
    """
    sent = {**headers, "Accept-Encoding": "identity"}
    first: requests.Response | None = None
    asked = url
    for _ in range(REDIRECTS_LIMIT):
        response = session.get(
            asked, headers=sent, stream=True, timeout=TIMEOUT_S, allow_redirects=False
        )
        first = response if first is None else first
        location = response.headers.get("Location")
        if response.status_code in _REDIRECTS and location:
            response.close()
            target = _target(asked, location, what)
            if not is_same_host(url, target):
                sent.pop("Authorization", None)
            asked = target
            continue
        with response:
            coding = response.headers.get("Content-Encoding", "identity")
            if response.ok and coding.lower() != "identity":
                raise CheckpointError(
                    f"{what}: the body is encoded as {shown(coding)}, and identity was asked for.",
                    hint="check the proxy between this machine and the hub",
                )
            yield HubAnswer(response, first.headers, None if asked == url else asked)
        return
    raise CheckpointError(f"{what}: the hub sends from one address to the next without an end.")


def is_web_address(url: str) -> bool:
    """Whether it is http:// or https:// with a host that could be looked up."""
    try:
        host = parse_url(url).host or ""
        # What the library does on its way to a name server, and has no error of its own for.
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
    """Return the header with the hub's token for an address, and none for one of another host.

    Every request of a hub's gets its token here, wherever its address comes from: an answer may
    name any.
    """
    is_for_hub = token and is_same_host(url, endpoint)
    return {"Authorization": f"Bearer {token}"} if is_for_hub else {}


def _target(asked: str, location: str, what: str) -> str:
    target = ""
    with contextlib.suppress(ValueError):
        # The library reads headers as Latin-1, and servers write them as UTF-8.
        target = urljoin(asked, requote_uri(location.encode("latin-1").decode()))
    if not is_followed(asked, target):
        raise CheckpointError(
            f"{what}: the hub sends to {shown(location)}, which is not followed from "
            f"{urlsplit(asked).scheme}.",
            hint="check that HF_ENDPOINT, proxies and the network are yours",
        )
    return target
