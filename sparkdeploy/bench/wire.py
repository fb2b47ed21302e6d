"""HTTP/1.1 as bytes: what is sent, and what the bytes that came back say. No sockets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h11

from sparkdeploy.bench.answers import Arrival, Exchange
from sparkdeploy.bench.record import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LAST_CHUNK = b"0\r\n\r\n"
OK = 200
_SHOWN_CHARACTERS = 300


@dataclass(slots=True)
class Response:
    """What has come of a response so far."""

    status: int | None = None
    body: list[Arrival] = field(default_factory=list)
    is_whole: bool = False
    problem: str = ""
    """What is wrong with the bytes, in h11's words."""


def request_bytes(*, host: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """Return one POST; the server is asked to close the connection when it has answered."""
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
            _take(response, _events(connection), piece.at_s)
        if is_closed and not response.is_whole:
            connection.receive_data(b"")
            _take(response, _events(connection), pieces[-1].at_s if pieces else 0.0)
    except h11.RemoteProtocolError as error:
        response.problem = str(error)
    return response


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


def _events(connection: h11.Connection) -> Iterator[h11.Event]:
    while True:
        event = connection.next_event()
        if event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
            return
        yield event  # type: ignore[misc]  # the sentinels have been sorted out


def _take(response: Response, events: Iterator[h11.Event], at_s: float) -> None:
    for event in events:
        if isinstance(event, h11.Response):
            response.status = event.status_code
        elif isinstance(event, h11.Data):
            response.body.append(Arrival(at_s, bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            response.is_whole = True
