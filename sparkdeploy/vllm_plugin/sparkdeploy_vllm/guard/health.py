"""Asks the server whether it is healthy, without ever waiting for the answer."""

import errno
import socket
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class HealthProbe:
    """One question at a time on a non-blocking socket, moved forward by every tick.

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
            self.close()
            return False
        return self._advance(self._socket)

    def close(self) -> None:
        """Drop the question in flight, if any."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._asked = False

    def _connect(self, now_s: float) -> None:
        self._started_s = now_s
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        if self._socket.connect_ex((self.host, self.port)) not in (0, errno.EINPROGRESS):
            self.close()

    def _advance(self, connection: socket.socket) -> bool:
        try:
            if not self._asked:
                connection.send(self._request())
                self._asked = True
            answer = connection.recv(64)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                self.close()
            return False
        self.close()
        return answer.split(b" ", 2)[1:2] == [b"200"]

    def _request(self) -> bytes:
        host = f"{self.host}:{self.port}"
        return f"GET {self.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
