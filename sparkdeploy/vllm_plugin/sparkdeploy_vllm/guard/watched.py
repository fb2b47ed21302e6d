"""What the guard watches: the machine's available memory and the server's health.

Memory is read without allocating any, and the server is asked without waiting for its answer.
"""

import errno
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_KEY = b"MemAvailable:"
_KIB = 1024


class AvailableMemory:
    """MemAvailable of a meminfo file that is opened once and read into one buffer."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = bytearray(4096)
        self._buffers = [self._buffer]

    def read_bytes(self) -> int | None:
        """Bytes available now; None when the file does not say (then nothing is decided on it)."""
        try:
            length = os.preadv(self._descriptor, self._buffers, 0)
        except OSError:
            return None
        start = self._buffer.find(_KEY, 0, length)
        if start < 0:
            return None
        kib, position = 0, start + len(_KEY)
        while position < length and self._buffer[position] != ord("\n"):
            digit = self._buffer[position] - ord("0")
            if 0 <= digit <= 9:
                kib = kib * 10 + digit
            position += 1
        return kib * _KIB


@dataclass(slots=True)
class HealthProbe:
    """One request at a time on a non-blocking socket, moved forward by every tick.

    `host` is an address or a name that resolves at once (it is resolved once, at creation).
    """

    host: str
    port: int
    path: str
    every_s: float = 2.0
    answer_timeout_s: float = 5.0
    _socket: socket.socket | None = None
    _asked: bool = False
    _started_s: float = field(default=float("-inf"))

    @classmethod
    def from_url(cls, url: str) -> "HealthProbe":
        """ValueError unless `url` is plain http with a port this machine can connect to."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(
                f"--health-url is {url!r}; it must look like http://127.0.0.1:8000/health"
            )
        address = socket.gethostbyname(parts.hostname)
        return cls(host=address, port=parts.port or 80, path=parts.path or "/health")

    def tick(self, now_s: float) -> bool:
        """Whether an answer 200 has just come in."""
        if self._socket is None:
            if now_s - self._started_s >= self.every_s:
                self._connect(now_s)
            return False
        if now_s - self._started_s > self.answer_timeout_s:
            self._hang_up()
            return False
        return self._advance(self._socket)

    def _connect(self, now_s: float) -> None:
        self._started_s = now_s
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        if self._socket.connect_ex((self.host, self.port)) not in (0, errno.EINPROGRESS):
            self._hang_up()

    def _advance(self, connection: socket.socket) -> bool:
        try:
            if not self._asked:
                host = f"{self.host}:{self.port}"
                request = f"GET {self.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                connection.send(request.encode())
                self._asked = True
            answer = connection.recv(64)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                self._hang_up()
            return False
        self._hang_up()
        return answer.split(b" ", 2)[1:2] == [b"200"]

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._asked = False
