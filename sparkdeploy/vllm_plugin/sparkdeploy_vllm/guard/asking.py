"""Asking the server over HTTP without waiting for it: every tick moves one request forward."""

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

EVERY_S = 2.0
ANSWER_TIMEOUT_S = 5.0
MOST_BYTES = 1 << 20
"""A page of vLLM's metrics has some 60 kB; what is longer is cut."""
STATUS_BYTES = len(b"HTTP/1.1 200")
_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Reply:
    status: bytes
    body: bytes


@dataclass(slots=True)
class PollingRequest:
    host: str
    port: int
    request: bytes
    most_bytes: int = MOST_BYTES
    every_s: float = EVERY_S
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    may_send: Callable[[socket.socket], bool] | None = None
    """Asked of each connection once it stands, before anything is sent; None: always."""
    _is_cleared: bool = False
    _socket: socket.socket | None = None
    _unsent: bytes = b""
    _received: bytearray = field(default_factory=bytearray)
    _started_s: float = field(default=float("-inf"))

    @property
    def is_waiting(self) -> bool:
        return self._socket is not None

    def tick(self, now_s: float) -> Reply | None:
        """Move on; the answer when it has just come in whole."""
        if self._socket is None:
            if now_s - self._started_s >= self.every_s:
                self._connect(now_s)
            return None
        if now_s - self._started_s > self.answer_timeout_s:
            self._hang_up()
            return None
        return self._advance(self._socket)

    def _connect(self, now_s: float) -> None:
        self._started_s = now_s
        self._unsent, self._is_cleared = self.request, self.may_send is None
        self._received.clear()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        if self._socket.connect_ex((self.host, self.port)) not in (0, errno.EINPROGRESS):
            self._hang_up()

    def _advance(self, connection: socket.socket) -> Reply | None:
        try:
            if not self._is_cleared:
                connection.send(b"")  # OSError while there is no connection
                self._is_cleared = self.may_send is None or self.may_send(connection)
            if not self._is_cleared:
                self._hang_up()
                return None
            if self._unsent:
                self._unsent = self._unsent[connection.send(self._unsent) :]
            while piece := connection.recv(65_536):
                self._received += piece
                if len(self._received) >= self.most_bytes:
                    break
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                self._hang_up()
            return None
        self._hang_up()
        head, _, body = bytes(self._received).partition(_END_OF_HEAD)
        words = head.split(b" ", 2)
        return Reply(words[1], body) if len(words) > 1 else None

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def question(url: str, *, method: str = "GET", key: str = "", body: bytes = b"") -> PollingRequest:
    """A question of `url` that closes its connection; ValueError for one that is no http URL."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url!r} must look like http://127.0.0.1:8000/health")
    host, port = parts.hostname, parts.port or 80
    head = [f"{method} {parts.path or '/'} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    if key:
        head.append(f"Authorization: Bearer {key}")
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    request = "\r\n".join([*head, "", ""]).encode() + body
    return PollingRequest(socket.gethostbyname(host), port, request)
