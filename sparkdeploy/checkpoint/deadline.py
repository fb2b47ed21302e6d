"""An end for what a server may spread over hours: every read of a socket is held to one clock."""

from __future__ import annotations

import functools
import io
import time
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

from requests.adapters import HTTPAdapter

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from urllib3.connection import HTTPConnection


class Deadline:
    """When reading must have ended, however much still comes; it is over until time is allowed.

    The timeouts of the libraries begin anew with every byte, so that a byte in time, header after
    header or trailer after trailer would be waited for without an end.
    """

    def __init__(self) -> None:
        self._until_s = 0.0

    def allow(self, limit_s: float) -> None:
        """Let reading go on for so long from now, whatever was allowed before."""
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
        """The library's pool, whose connections answer through the deadline."""
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        # Pools are kept, and proxies have connections of their own kinds.
        if not isinstance(pool.ConnectionCls, functools.partial):
            pool.ConnectionCls = functools.partial(_connection, pool.ConnectionCls, self._deadline)
        return pool


def _connection(
    make: Callable[..., HTTPConnection], deadline: Deadline, **options: object
) -> HTTPConnection:
    connection = make(**options)
    answer: Any = functools.partial(_TimedResponse, deadline)
    connection.response_class = answer
    return connection


class _TimedResponse(HTTPResponse):
    """An answer of which headers, body and trailers are read until the deadline."""

    def __init__(self, deadline: Deadline, sock: socket.socket, method: str) -> None:
        super().__init__(sock, method=method)
        self.fp: io.BufferedReader = io.BufferedReader(
            _TimedReader(deadline, sock, self.fp.detach())
        )


class _TimedReader(io.RawIOBase):
    """A socket's bytes; a read waits no longer than the socket would, nor than the deadline."""

    def __init__(self, deadline: Deadline, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._deadline, self._sock, self._raw = deadline, sock, raw
        self._timeout_s = sock.gettimeout()

    def readable(self) -> bool:
        """It is read and nothing else."""
        return True

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401 - any buffer
        """Read what has come."""
        left_s = self._deadline.left_s()
        self._sock.settimeout(left_s if self._timeout_s is None else min(left_s, self._timeout_s))
        read: int | None = self._raw.readinto(buffer)
        return read

    def close(self) -> None:
        """Give the socket back."""
        self._raw.close()
        super().close()
