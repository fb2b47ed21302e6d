"""HTTP servers on this machine that outlive clients which go away in the middle of an answer."""

from __future__ import annotations

import contextlib
import json
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

ANSWER_LIMIT_S = 30.0


class _Surviving(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """Keeps what went wrong in a handler for the test; a client that went away is no fault."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.errors: list[BaseException] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: the test reads what the program writes to the same stderr."""
        del request, client_address
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            self.errors.append(error)


class HttpServer(_Surviving, ThreadingHTTPServer):
    """Listens on a free port of the loopback."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class UnixHttpServer(_Surviving, socketserver.ThreadingUnixStreamServer):
    """Listens on a Unix socket, as a Docker Engine does."""

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("local", 0)  # http.server writes of an address and a port


class Handler(BaseHTTPRequestHandler):
    """Reads and answers JSON, and writes no log."""

    timeout = ANSWER_LIMIT_S

    def body(self) -> Any:
        """Return the JSON of the request, the bytes of a form; None without a body."""
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length)
        if self.headers.get("Content-Type", "").startswith("multipart/"):
            return sent
        return json.loads(sent) if length else None

    def send(self, status: int, content: object) -> None:
        """Answer with that text, or with anything else as JSON."""
        text = content if isinstance(content, str) else json.dumps(content)
        data = text.encode()
        self.send_response(status)
        if not isinstance(content, str):
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, *parts: bytes) -> None:
        """Answer 200 with these bytes, whose end is the connection's."""
        self.send_response(200)
        self.end_headers()
        for part in parts:
            self.wfile.write(part)

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def get(self) -> None:
        """Answer a GET."""
        self.send(404, "no such route")

    def post(self) -> None:
        """Answer a POST."""
        self.send(404, "no such route")

    def log_message(self, *_: object) -> None: ...


class TableHandler(Handler):
    server: TableServer

    def get(self) -> None:
        """Note the request and answer it from the table."""
        path, body = self.path.partition("?")[0], self.body()
        self.server.asked.append((path, self.headers.get("Authorization"), body))
        assert self.server.go_on.wait(ANSWER_LIMIT_S)
        answer = self.server.answers.get(path, (404, "no such route"))
        self.send(*(answer(body) if callable(answer) else answer))

    post = get


class TableServer(HttpServer):
    """Answers each path with a status and a content, or with what a function makes of the body."""

    def __init__(self) -> None:
        super().__init__(TableHandler)
        self.answers: dict[str, tuple[int, object] | Callable[[Any], tuple[int, object]]] = {}
        self.asked: list[tuple[str, str | None, Any]] = []
        """Of each request: path, `Authorization`, body."""
        self.go_on = threading.Event()
        """Cleared, it keeps its callers waiting."""
        self.go_on.set()


Server = TypeVar("Server", bound=_Surviving)


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serve until the block ends; what went wrong in a handler fails the test."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            if isinstance(server, TableServer):
                server.go_on.set()
            server.shutdown()
            thread.join()
    for error in server.errors:
        raise error
