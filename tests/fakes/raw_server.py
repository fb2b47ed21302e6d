"""A server that writes the very bytes it is given and then keeps the connection, or closes it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.fakes.scripted_server import DEADLINE_S, read_request


@dataclass
class RawServer:
    """Answers each connection with `parts`, one write each, and closes only where it is told to."""

    parts: Sequence[bytes]
    closes: bool = False
    certificate: ssl.SSLContext | None = None
    heads: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            with contextlib.suppress(OSError):
                self._answer(connection)

    def _answer(self, plain: socket.socket) -> None:
        plain.settimeout(DEADLINE_S)
        connection = plain
        if self.certificate is not None:
            connection = self.certificate.wrap_socket(plain, server_side=True)
            self._open.append(connection)
        head, _body = read_request(connection)
        self.heads.append(head)
        for part in self.parts:
            connection.sendall(part)
        if self.closes:
            connection.close()

    def close(self) -> None:
        # An `accept` that waits is not woken by a close alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()


@contextlib.contextmanager
def raw_server(
    *parts: bytes, closes: bool = False, certificate: ssl.SSLContext | None = None
) -> Iterator[RawServer]:
    server = RawServer(parts, closes, certificate)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(DEADLINE_S)
