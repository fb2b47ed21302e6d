"""A server that streams what a script says, over real sockets, and decides what time it is.

The client's clock is the script's: before each write the server sets it, and goes on when the
client has looked at it, that is, when it has read the bytes. So the sockets are real, the truth
is known exactly, and nothing depends on how busy the machine is.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 30.0
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)


@dataclass(frozen=True)
class Write:
    """Bytes of the answer's body, in one HTTP chunk."""

    at_s: float
    stream: int
    data: bytes


@dataclass(frozen=True)
class End:
    """The body ends as it should."""

    at_s: float
    stream: int


@dataclass(frozen=True)
class Drop:
    """The connection is reset in the middle of the body."""

    at_s: float
    stream: int


@dataclass(frozen=True)
class Refuse:
    """Another status than 200, instead of a body."""

    at_s: float
    stream: int
    status: int
    words: str


Action = Write | End | Drop | Refuse


class ScriptedClock:
    """What the client takes for the time; tells when it has been looked at."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._looks = 0
        self._changed = threading.Condition()

    def __call__(self) -> float:
        with self._changed:
            self._looks += 1
            self._changed.notify_all()
            return self._now_s

    def set(self, now_s: float) -> int:
        """Set the time; return how often it has been looked at before."""
        with self._changed:
            self._now_s = now_s
            return self._looks

    def wait_for_look_after(self, looks: int) -> None:
        with self._changed:
            seen = self._changed.wait_for(lambda: self._looks > looks, DEADLINE_S)
        assert seen, "the client did not read what was written"


class ScriptedServer:
    """Plays one script to as many connections as it has streams."""

    def __init__(self, actions: Sequence[Action], clock: ScriptedClock) -> None:
        self._script = sorted(actions, key=lambda action: action.at_s)
        self._refused = {action.stream for action in actions if isinstance(action, Refuse)}
        self._clock = clock
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(DEADLINE_S)
        self._connections: dict[int, socket.socket] = {}
        self._done: set[int] = set()
        self._thread = threading.Thread(target=self._play)
        self.heads: dict[int, bytes] = {}
        self.bodies: dict[int, Any] = {}
        self.error: BaseException | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(DEADLINE_S)
        self._listener.close()
        for connection in self._connections.values():
            connection.close()
        if self.error is not None:
            raise self.error

    def _play(self) -> None:
        try:
            self._begin()
            for action in self._script:
                if action.stream in self._done:
                    self._wait_for_leaving(self._connections[action.stream])
                else:
                    looks = self._clock.set(action.at_s)
                    self._do(action)
                    self._clock.wait_for_look_after(looks)
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self.error = error

    def _begin(self) -> None:
        """Take all requests first: each has looked at the clock before it was sent."""
        for _ in {action.stream for action in self._script}:
            connection, _address = self._listener.accept()
            connection.settimeout(DEADLINE_S)
            head, text = read_request(connection)
            body = json.loads(text)
            self.heads[body["stream"]], self.bodies[body["stream"]] = head, body
            self._connections[body["stream"]] = connection
        for stream in self._connections.keys() - self._refused:
            looks = self._clock.set(0.0)
            self._connections[stream].sendall(HEAD)
            self._clock.wait_for_look_after(looks)

    def _wait_for_leaving(self, connection: socket.socket) -> None:
        """The client leaves at the last chunk, which comes with [DONE]."""
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""

    def _do(self, action: Action) -> None:
        connection = self._connections[action.stream]
        if isinstance(action, Write):
            is_last = DONE in action.data
            end = b"0\r\n\r\n" if is_last else b""
            connection.sendall(b"%x\r\n%s\r\n" % (len(action.data), action.data) + end)
            if is_last:
                self._done.add(action.stream)
        elif isinstance(action, End):
            connection.sendall(b"0\r\n\r\n")
        elif isinstance(action, Refuse):
            text = action.words.encode()
            head = f"HTTP/1.1 {action.status} No\r\nContent-Length: {len(text)}\r\n\r\n"
            connection.sendall(head.encode() + text)
        else:
            # Linger 0 makes the close a reset rather than an orderly end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()


def read_request(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read one request; return its head and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().splitlines()
        if line.startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head, body


@contextlib.contextmanager
def scripted(actions: Sequence[Action]) -> Iterator[tuple[ScriptedServer, ScriptedClock]]:
    """Serve a script; an error in the server's thread fails the test."""
    clock = ScriptedClock()
    with ScriptedServer(actions, clock) as server:
        yield server, clock


def event(
    *,
    ids: Sequence[int] | None = None,
    text: str = "",
    usage: tuple[int, int] | None = None,
    finish: str | None = None,
    choices: bool = True,
) -> bytes:
    """Return a server-sent event as vLLM writes it; `usage` is prompt and completion tokens."""
    content: dict[str, Any] = {"object": "chat.completion.chunk", "choices": []}
    if choices:
        choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        if ids is not None:
            choice["token_ids"] = list(ids)
        content["choices"] = [choice]
    if usage is not None:
        content["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return b"data: " + json.dumps(content).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
