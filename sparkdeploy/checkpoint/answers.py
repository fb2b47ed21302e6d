"""One GET of a hub: redirects are counted, their bodies unread, and a token stays with its host."""

import contextlib
import functools
import io
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import requote_uri
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from sparkdeploy.checkpoint.repo_files import shown
from sparkdeploy.errors import CheckpointError

TIMEOUT_S = (15.0, 60.0)
"""Until a connection stands, and until the next bytes come."""
CHUNK_BYTES = 1 << 16
"""What is lost at most when a connection breaks."""
REDIRECTS_LIMIT = 10
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class HubSession(requests.Session):
    """Connections that are kept, and that follow no redirect by themselves.

    The library would read the body of each redirect, however long it is. Nothing is read before
    time for it is allowed at `deadline`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auth = without_login
        self.deadline = Deadline()
        for scheme in ("http://", "https://"):
            self.mount(scheme, TimedAdapter(self.deadline))

    def get_redirect_target(self, resp: requests.Response) -> str | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """What came at last, its body unread, and the headers of the hub's own answer before it."""

    response: requests.Response
    first_headers: Mapping[str, str]
    place: str | None
    """Where redirects led to; None without one."""


@contextlib.contextmanager
def open_answer(
    session: HubSession, url: str, headers: Mapping[str, str], what: str
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
        with _library_errors():
            response = session.get(asked, headers=sent, stream=True, timeout=TIMEOUT_S)
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


def body(answer: HubAnswer) -> Iterator[bytes]:
    """Yield the body as it comes; requests.RequestException when it breaks."""
    chunks = iter(answer.response.iter_content(CHUNK_BYTES))
    while True:
        with _library_errors():
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk


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


def without_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return a request as it is: where the library is given no login, it reads ~/.netrc."""
    return request


@contextlib.contextmanager
def _library_errors() -> Iterator[None]:
    """What the libraries let through of a server's nonsense becomes an error of requests."""
    try:
        yield
    except requests.RequestException:
        raise
    except (ValueError, HTTPError) as error:
        raise requests.exceptions.ChunkedEncodingError(error) from error


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


class Deadline:
    """When reading must have ended, however much still comes; it is over until time is allowed.

    The timeouts of the libraries begin anew with every byte, so that a byte in time, header after
    header or trailer after trailer would be waited for without an end.
    """

    def __init__(self) -> None:
        self._until_s = 0.0

    def allow(self, limit_s: float) -> None:
        self._until_s = time.monotonic() + limit_s

    def left_s(self) -> float:
        """What is left; TimeoutError when nothing is."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the whole answer did not come in time")
        return left_s


class TimedAdapter(HTTPAdapter):
    """Connections, through a proxy or not, whose answers are read until a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        super().__init__()

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the base's own
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        # Pools are kept, and proxies have connections of their own kinds.
        if pool.ConnectionCls.response_class is HTTPResponse:
            answer = staticmethod(functools.partial(_timed_response, self._deadline))
            timed = {"response_class": answer}
            pool.ConnectionCls = type("TimedConnection", (pool.ConnectionCls,), timed)
        return pool


def timed_session(limit_s: float) -> requests.Session:
    """Return connections whose answers are read for so long in all."""
    deadline, session = Deadline(), requests.Session()
    deadline.allow(limit_s)
    for scheme in ("http://", "https://"):
        session.mount(scheme, TimedAdapter(deadline))
    return session


def _timed_response(deadline: Deadline, sock: socket.socket, method: str) -> HTTPResponse:
    response = HTTPResponse(sock, method=method)
    response.fp = io.BufferedReader(_TimedReader(deadline, sock, response.fp.detach()))
    return response


class _TimedReader(io.RawIOBase):
    """A socket's bytes; a read waits no longer than the socket would, nor than the deadline."""

    def __init__(self, deadline: Deadline, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._deadline, self._sock, self._raw = deadline, sock, raw
        self._timeout_s = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401 - any buffer
        left_s = self._deadline.left_s()
        self._sock.settimeout(left_s if self._timeout_s is None else min(left_s, self._timeout_s))
        read: int | None = self._raw.readinto(buffer)
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()
