"""The client: concurrent streamed requests, timed at the socket. Bytes in, nothing read here."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from sparkdeploy.bench.answers import Arrival, Exchange
from sparkdeploy.bench.record import Failure, FailureKind
from sparkdeploy.bench.wire import LAST_CHUNK, exchange_of, read_response, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

SILENCE_S = 600.0
"""How long nothing may come; prefill of 256K takes minutes on a Spark."""
CONNECT_S = 10.0
CHAT_PATH = "/v1/chat/completions"
_OK_STATUS = b" 200"


@dataclass(frozen=True, slots=True)
class _Raw:
    """One request as the socket showed it."""

    sent_s: float
    ended_s: float
    pieces: tuple[Arrival, ...] = ()
    failure: Failure | None = None

    def exchange(self) -> Exchange:
        return exchange_of(self.sent_s, self.ended_s, self.pieces, self.failure)


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
        if self._may_be_last(data) and read_response(self.pieces, is_closed=False).is_whole:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own
        if not self.ended.done():
            self.lost_at_s = self._clock()
            self._end()

    def _may_be_last(self, data: bytes) -> bool:
        """Reading costs time: a stream is read once it looks ended, a refusal always."""
        return data.endswith(LAST_CHUNK) or self.pieces[0].data[8:12] != _OK_STATUS

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Streams:
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
        """Prepare; nothing is sent yet."""
        parts = urlsplit(base_url)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._ssl else 80)
        self._authority = parts.netloc
        self._path = parts.path.rstrip("/") + CHAT_PATH
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._silence_s = silence_s
        self._clock = clock
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        """Start the event loop."""
        self._runner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the loop."""
        self._runner.__exit__(kind, error, trace)

    def round(self, bodies: Sequence[Mapping[str, Any]]) -> tuple[Exchange, ...]:
        """Send all bodies at once; return what came back, in the same order."""
        requests = [
            request_bytes(
                host=self._authority,
                path=self._path,
                headers=self._headers,
                body=json.dumps(body).encode(),
            )
            for body in bodies
        ]
        with _without_pauses():
            raw = self._runner.run(self._exchange_all(requests))
        return tuple(item.exchange() for item in raw)

    async def _exchange_all(self, requests: Sequence[bytes]) -> list[_Raw]:
        return await asyncio.gather(*(self._exchange(request) for request in requests))

    async def _exchange(self, request: bytes) -> _Raw:
        sent_s = self._clock()
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, receiver = await asyncio.get_running_loop().create_connection(
                    lambda: _Receiver(request, self._clock), self._host, self._port, ssl=self._ssl
                )
        except (OSError, TimeoutError) as error:
            words = str(error) or f"no connection within {CONNECT_S:g} s"
            return _Raw(sent_s, self._clock(), failure=Failure(FailureKind.UNREACHABLE, words))
        try:
            failure = await self._wait(receiver)
        finally:
            transport.abort()
        pieces = tuple(receiver.pieces)
        if failure is not None:
            ended_s = self._clock()
        else:
            ended_s = receiver.lost_at_s if receiver.lost_at_s is not None else pieces[-1].at_s
        return _Raw(sent_s, ended_s, pieces, failure)

    async def _wait(self, receiver: _Receiver) -> Failure | None:
        """Wait for the end; return a failure when nothing came for too long."""
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
