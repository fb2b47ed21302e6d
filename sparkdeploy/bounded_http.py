"""The only connections of requests: each answer has a size, and a clock for the whole of it."""

import contextlib
import functools
import io
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, ReadTimeoutError

MAX_ANSWER_BYTES = 64 << 20
"""Far beyond any answer of vLLM: a list of metrics is about 100 KiB."""
CHUNK_BYTES = 1 << 16
"""What is lost at most when a connection breaks."""


class AnswerTooLargeError(requests.RequestException):
    """An answer is larger than it may be."""


class Deadline(threading.local):
    """When a thread's reading must have ended, however much still comes; over until it is allowed.

    The timeouts of the libraries begin anew with every byte, so that a byte in time, header after
    header or trailer after trailer would be waited for without an end.
    """

    def __init__(self) -> None:
        self._until_s = 0.0

    def allow(self, limit_s: float) -> None:
        self._until_s = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Return what is left; TimeoutError when nothing is."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the whole answer did not come in time")
        return left_s


class BoundedSession(requests.Session):
    """Connections that are kept, follow no redirect and read no ~/.netrc.

    Nothing is read before time for it is allowed at `deadline`. The body of an answer that is not
    streamed is read up to a size; that of a streamed one is read by `chunks`.
    """

    def __init__(self, limit_s: float = 0.0) -> None:
        super().__init__()
        self.auth = without_login
        self.deadline = Deadline()
        self.deadline.allow(limit_s)
        for scheme in ("http://", "https://"):
            self.mount(scheme, TimedAdapter(self.deadline))

    def send(
        self,
        request: requests.PreparedRequest,
        **options: Any,  # noqa: ANN401 - the base's own
    ) -> requests.Response:
        is_streamed = options.pop("stream", False)
        with _library_errors():
            response = super().send(request, stream=True, **options)
        if not is_streamed:
            read_whole(response)
        return response

    def get_redirect_target(self, resp: requests.Response) -> str | None:  # noqa: ARG002
        # The library would read the body of each redirect, however long it is.
        return None


def read_whole(response: requests.Response) -> None:
    """Read the body of a streamed answer, so that `text` and `json` have it; raises as `chunks`."""
    response._content = b"".join(chunks(response, MAX_ANSWER_BYTES))


def chunks(
    response: requests.Response, max_bytes: int, chunk_bytes: int | None = CHUNK_BYTES
) -> Iterator[bytes]:
    """Yield a body as it comes; None for pieces of the size in which it comes.

    Raises AnswerTooLargeError, and closes the connection, for one that is larger; ReadTimeout when
    it does not come in time; another RequestException when it breaks.
    """
    read_bytes, pieces = 0, iter(response.iter_content(chunk_bytes))
    while True:
        with _library_errors():
            piece = next(pieces, None)
        if piece is None:
            return
        read_bytes += len(piece)
        if read_bytes > max_bytes:
            response.close()
            raise AnswerTooLargeError(f"it sent more than {max_bytes >> 20} MiB")
        yield piece


def without_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return a request as it is: where the library is given no login, it reads ~/.netrc."""
    return request


@contextlib.contextmanager
def _library_errors() -> Iterator[None]:
    """Make requests' own errors of what the libraries let through of a server's nonsense."""
    try:
        yield
    except requests.ConnectionError as error:
        if any(isinstance(cause, ReadTimeoutError) for cause in error.args):
            raise requests.ReadTimeout(*error.args) from error
        raise
    except requests.RequestException:
        raise
    except (ValueError, HTTPError) as error:
        raise requests.exceptions.ChunkedEncodingError(error) from error


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
