"""The client: concurrent streamed requests over HTTP/1.1, timed at the socket, read later."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11

from sparkdeploy.bench.answers import Arrival, Exchange
from sparkdeploy.bench.record import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SILENCE_S = 600.0
"""How long nothing may come; prefill of 256K takes minutes on a Spark."""
CONNECT_S = 10.0
CHAT_PATH = "/v1/chat/completions"
LAST_CHUNK = b"0\r\n\r\n"
OK = 200
_OK_STATUS = b" 200"
_SHOWN_CHARACTERS = 300
_Seen = tuple[float, float, list[Arrival], Failure | None]
"""When a request was sent and ended, in seconds of the client's clock, and what came."""


@dataclass(slots=True)
class Response:
    status: int | None = None
    body: list[Arrival] = field(default_factory=list)
    is_whole: bool = False
    problem: str = ""
    """What is wrong with the bytes, in h11's words."""


def request_bytes(*, host: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def read_response(pieces: Sequence[Arrival], *, is_closed: bool) -> Response:
    """Take a response apart; each part of its body keeps the moment at which it came."""
    response = Response()
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "server")]))
    connection.send(h11.EndOfMessage())
    try:
        # To h11 no bytes mean that the connection has ended.
        for piece in filter(lambda piece: piece.data, pieces):
            connection.receive_data(piece.data)
            _take(response, connection, piece.at_s)
        if is_closed and not response.is_whole:
            connection.receive_data(b"")
            _take(response, connection, pieces[-1].at_s if pieces else 0.0)
    except h11.RemoteProtocolError as error:
        response.problem = str(error)
    return response


def _take(response: Response, connection: h11.Connection, at_s: float) -> None:
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Response):
            response.status = event.status_code
        elif isinstance(event, h11.Data):
            response.body.append(Arrival(at_s, bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            response.is_whole = True
        elif not isinstance(event, h11.InformationalResponse):
            return


def exchange_of(
    sent_s: float, ended_s: float, pieces: Sequence[Arrival], failure: Failure | None
) -> Exchange:
    """Return the exchange: its body's arrivals, and what the connection or the status says."""
    response = read_response(pieces, is_closed=failure is None)
    if response.status is not None and response.status != OK:
        words = b"".join(part.data for part in response.body).decode(errors="replace").strip()
        refusal = f"{response.status}: {words[:_SHOWN_CHARACTERS]}"
        return Exchange(sent_s, ended_s, (), Failure(FailureKind.REFUSED, refusal))
    if failure is None and not response.is_whole:
        kind = FailureKind.BROKEN_OFF if pieces else FailureKind.UNREACHABLE
        failure = Failure(kind, response.problem or "the connection ended before the answer")
    return Exchange(sent_s, ended_s, tuple(response.body), failure)


class _Receiver(asyncio.Protocol):
    """Sends one request and keeps each read with its moment; nothing else while it streams."""

    def __init__(self, request: bytes, clock: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        self.pieces: list[Arrival] = []
        self.ended: asyncio.Future[None] = loop.create_future()
        self.lost_at_s: float | None = None
        self.heard_s = loop.time()
        self._request = request
        self._clock = clock
        self._loop_time = loop.time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]  # a TCP transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(Arrival(self._clock(), data))
        self.heard_s = self._loop_time()
        # Reading costs time: a stream is read once it looks ended, a refusal always.
        may_be_last = data.endswith(LAST_CHUNK) or self.pieces[0].data[8:12] != _OK_STATUS
        if may_be_last and read_response(self.pieces, is_closed=False).is_whole:
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

    `round` sends all bodies at once and returns when the last answer has ended. Each request
    connects anew, as the field's curl does. One that fails says so in its Exchange; nothing is
    raised and nothing is repeated. Proxies of the environment are never used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        parts = urlsplit(base_url)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._ssl else 80)
        path = parts.path.rstrip("/") + CHAT_PATH
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._request = partial(request_bytes, host=parts.netloc, path=path, headers=headers)
        self._silence_s = silence_s
        self._clock = clock
        self._runner = asyncio.Runner()

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def round(self, bodies: Sequence[Mapping[str, Any]]) -> tuple[Exchange, ...]:
        requests = [self._request(body=json.dumps(body).encode()) for body in bodies]
        with _without_pauses():
            seen = self._runner.run(self._exchange_all(requests))
        return tuple(exchange_of(*item) for item in seen)

    async def _exchange_all(self, requests: Sequence[bytes]) -> list[_Seen]:
        return await asyncio.gather(*(self._exchange(request) for request in requests))

    async def _exchange(self, request: bytes) -> _Seen:
        sent_s = self._clock()
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, receiver = await asyncio.get_running_loop().create_connection(
                    lambda: _Receiver(request, self._clock), self._host, self._port, ssl=self._ssl
                )
        except (OSError, TimeoutError) as error:
            words = str(error) or f"no connection within {CONNECT_S:g} s"
            return sent_s, self._clock(), [], Failure(FailureKind.UNREACHABLE, words)
        try:
            failure = await self._wait(receiver)
        finally:
            transport.abort()
        pieces, ended_s = receiver.pieces, receiver.lost_at_s
        if failure is not None:
            ended_s = self._clock()
        elif ended_s is None:
            ended_s = pieces[-1].at_s
        return sent_s, ended_s, pieces, failure

    async def _wait(self, receiver: _Receiver) -> Failure | None:
        now = asyncio.get_running_loop().time
        while not receiver.ended.done():
            left_s = receiver.heard_s + self._silence_s - now()
            if left_s <= 0:
                return Failure(FailureKind.TIMEOUT, f"nothing came for {self._silence_s:g} s")
            await asyncio.wait((receiver.ended,), timeout=left_s)
        return None


@contextlib.contextmanager
def _without_pauses() -> Iterator[None]:
    """Keep the garbage collector from stopping the clock's reader in the middle of a round."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
