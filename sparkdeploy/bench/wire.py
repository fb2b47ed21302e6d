"""HTTP/1.1 as bytes: a request to send, and an answer taken apart after it was timed."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import h11

from sparkdeploy.bench.answers import Arrival, Exchange, plain_words
from sparkdeploy.bench.record import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OK = 200
_OK_STATUS = b" 200"
LAST_CHUNK = b"\r\n0\r\n\r\n"
"""An event's data is JSON, which has no line break: only the last chunk looks like this."""
_DONE_LINE = re.compile(rb"^data: ?\[DONE\]\s*$", re.MULTILINE)
_GZIP_OR_ZLIB = 47
"""zlib's window bits for either kind of head."""


class Response:
    """An answer, taken apart piece by piece."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body: list[Arrival] = []
        """Decompressed where the server compressed it although it was asked not to."""
        self.is_whole = False
        self.problem = ""
        self._inflate: Any = None
        self._connection = h11.Connection(h11.CLIENT)
        request = h11.Request(method="POST", target="/", headers=[("Host", "server")])
        self._connection.send(request)
        self._connection.send(h11.EndOfMessage())

    @property
    def text(self) -> bytes:
        return b"".join(part.data for part in self.body)

    def take(self, data: bytes, at_s: float) -> None:
        self._connection.receive_data(data)
        while True:
            event = self._connection.next_event()
            if isinstance(event, h11.Response):
                self.status = event.status_code
                if dict(event.headers).get(b"content-encoding", b"") in {b"gzip", b"deflate"}:
                    self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            elif isinstance(event, h11.Data):
                part = bytes(event.data)
                if self._inflate is not None:
                    part = self._inflate.decompress(part)
                self.body.append(Arrival(at_s, part))
            elif isinstance(event, h11.EndOfMessage):
                self.is_whole = True
            elif not isinstance(event, h11.InformationalResponse):
                return


def request_bytes(*, host: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def read_response(pieces: Sequence[Arrival], *, is_closed: bool) -> Response:
    """Take a response apart; each part of its body keeps the moment at which it came."""
    response = Response()
    try:
        # To h11 no bytes mean that the connection has ended.
        for piece in filter(lambda piece: piece.data, pieces):
            response.take(piece.data, piece.at_s)
        if is_closed and not response.is_whole:
            response.take(b"", pieces[-1].at_s if pieces else 0.0)
    except (h11.RemoteProtocolError, zlib.error) as error:
        response.problem = str(error)
    return response


def has_ended(pieces: Sequence[Arrival]) -> bool:
    """Return whether an answer is complete, though its connection goes on."""
    response = read_response(pieces, is_closed=False)
    return response.is_whole or _says_done(response)


def _says_done(response: Response) -> bool:
    return response.status == OK and _DONE_LINE.search(response.text) is not None


def is_refused(seen: Exchange) -> bool:
    """Return whether the connection failed or the status is not 200, at the price of a glance."""
    head = b"".join(piece.data for piece in seen.arrivals[:4])
    return seen.failure is not None or head[8:12] != _OK_STATUS


def exchange_of(seen: Exchange) -> Exchange:
    """Return the exchange of a body's bytes, from one of the connection's bytes."""
    failure = seen.failure
    response = read_response(seen.arrivals, is_closed=failure is None)
    arrivals = tuple(response.body)
    if response.status is not None and response.status != OK:
        failure = Failure(FailureKind.REFUSED, f"{response.status}: {plain_words(response.text)}")
        arrivals = ()
    elif failure is None and not response.is_whole and not _says_done(response):
        kind = FailureKind.BROKEN_OFF if seen.arrivals else FailureKind.UNREACHABLE
        failure = Failure(kind, response.problem or "the connection ended before the answer")
    return replace(seen, arrivals=arrivals, failure=failure)
