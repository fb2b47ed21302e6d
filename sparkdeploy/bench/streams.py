"""The client: concurrent streamed requests over HTTP/1.1, timed at the socket, read later.

A request is bytes to send, and an answer is taken apart after it was timed.
"""

import asyncio
import contextlib
import json
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11

from sparkdeploy.bench.answers import Arrival, Exchange, plain_words
from sparkdeploy.bench.record import Failure, FailureKind
from sparkdeploy.checkpoint.contents import collector_paused
from sparkdeploy.recipe.answers import CHAT
from sparkdeploy.server.trust import connection_error, ssl_context

OK = 200
LAST_CHUNK = b"\r\n0\r\n\r\n"
"""An event's data is JSON, which has no line break: only the last chunk looks like this."""
_DONE_LINE = re.compile(rb"^data: ?\[DONE\]\s*$", re.MULTILINE)
_GZIP_OR_ZLIB = 47
"""zlib's window bits for either kind of head."""
SILENCE_S = 600.0
"""How long nothing may come; prefill of 256K takes minutes on a Spark."""
LONGEST_S = 24 * 3600.0
"""For a whole answer, however much still comes."""
MAX_ANSWER_BYTES = 256 << 20
"""About a million tokens, of 250 bytes an event."""
CONNECT_S = 10.0
PAUSE_S = 0.5
"""After it a stream is read in passing: where its end does not look like one, it ends here."""


class _Receiver(asyncio.Protocol):
    """Sends one request and keeps each read with its moment; nothing else while it streams."""

    def __init__(self, request: bytes, clock: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        self.pieces: list[Arrival] = []
        self.ended: asyncio.Future[None] = loop.create_future()
        self.lost_at_s: float | None = None
        self.left_bytes = MAX_ANSWER_BYTES
        self.heard_s = loop.time()
        self.sent_s: float | None = None
        self._request = request
        self._clock = clock
        self._loop_time = loop.time
        self._tail = b""
        self._looked_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sent_s = self._clock()
        transport.write(self._request)  # type: ignore[attr-defined]  # a TCP transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(Arrival(self._clock(), data))
        self.heard_s = self._loop_time()
        self.left_bytes -= len(data)
        # Nothing is parsed here: it would delay the moments of streams that end with this one.
        # Any end but the last chunk is that of the connection, or is found in a pause.
        self._tail = (self._tail + data)[-len(LAST_CHUNK) :]
        if self.left_bytes < 0 or self._tail == LAST_CHUNK:
            self._end()

    def look_in_a_pause(self) -> None:
        """Read what came, once, when nothing has come for a while: an end may look like none."""
        is_pause = self._loop_time() - self.heard_s >= PAUSE_S
        if is_pause and len(self.pieces) > self._looked_at:
            self._looked_at = len(self.pieces)
            if has_ended(self.pieces):
                self._end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own
        if not self.ended.done():
            self.lost_at_s = self._clock()
            self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Streams(contextlib.AbstractContextManager["Streams"]):
    """Streamed requests to one server; a context manager that keeps one event loop.

    Each request connects anew, as the field's curl does. One that fails says so in its Exchange;
    nothing is raised and nothing is repeated. Proxies of the environment are never used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        ca_file: Path | None = None,
        silence_s: float = SILENCE_S,
        require_listener: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        parts = urlsplit(base_url)
        self._ssl = ssl_context(ca_file) if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._ssl else 80)
        path = parts.path.rstrip("/") + CHAT
        lines = [f"POST {path} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
        lines += ["Connection: close", "Content-Type: application/json"]
        lines += ["Accept-Encoding: identity"]
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        self._head = "\r\n".join(lines)
        self._silence_s = silence_s
        self._require_listener = require_listener or (lambda: None)
        self._clock = clock
        self._runner = asyncio.Runner()

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def round(self, bodies: Sequence[Mapping[str, Any]]) -> tuple[Exchange, ...]:
        """Send all bodies at once; return when the last answer has ended."""
        self._require_listener()
        requests = [self._request(json.dumps(body).encode()) for body in bodies]
        with collector_paused():
            seen = self._runner.run(self._exchange_all(requests))
        return tuple(map(exchange_of, seen))

    def _request(self, text: bytes) -> bytes:
        return f"{self._head}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text

    async def _exchange_all(self, requests: Sequence[bytes]) -> list[Exchange]:
        return await asyncio.gather(*(self._exchange(request) for request in requests))

    async def _exchange(self, request: bytes) -> Exchange:
        began_s = self._clock()
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, receiver = await asyncio.get_running_loop().create_connection(
                    lambda: _Receiver(request, self._clock), self._host, self._port, ssl=self._ssl
                )
        except (OSError, TimeoutError) as error:
            words = connection_error(error) or f"no connection within {CONNECT_S:g} s"
            failure = Failure(FailureKind.UNREACHABLE, words)
            return Exchange(began_s, self._clock(), failure=failure)
        try:
            failure_seen = await self._wait(receiver)
        finally:
            transport.abort()
        return self._seen(receiver, began_s, failure_seen)

    def _seen(self, receiver: _Receiver, began_s: float, failure: Failure | None) -> Exchange:
        pieces, ended_s = receiver.pieces, receiver.lost_at_s
        if failure is not None:
            ended_s = self._clock()
        elif ended_s is None:
            ended_s = pieces[-1].at_s
        sent_s = began_s if receiver.sent_s is None else receiver.sent_s
        return Exchange(sent_s, ended_s, tuple(pieces), failure, sent_s - began_s)

    async def _wait(self, receiver: _Receiver) -> Failure | None:
        now = asyncio.get_running_loop().time
        until_s = now() + LONGEST_S
        while not receiver.ended.done():
            left_s = receiver.heard_s + self._silence_s - now()
            if left_s <= 0:
                return Failure(FailureKind.TIMEOUT, f"nothing came for {self._silence_s:g} s")
            if now() > until_s:
                return Failure(FailureKind.TIMEOUT, f"no end came within {LONGEST_S:g} s")
            await asyncio.wait((receiver.ended,), timeout=min(left_s, PAUSE_S))
            receiver.look_in_a_pause()
        if receiver.left_bytes < 0:
            return Failure(FailureKind.MALFORMED, f"more than {MAX_ANSWER_BYTES >> 20} MiB came")
        return None


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
