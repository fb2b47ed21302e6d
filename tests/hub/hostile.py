"""A hub that means harm: one listing for every repository, one content for every file."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.fakes.http_server import HttpServer, serving
from tests.hub.quiet import QuietHandler


@dataclass(slots=True)
class HostileHub:
    """What it answers, which a test may change at any time, and what it was asked."""

    endpoint: str = ""
    status: int = 200
    reason: str | None = None
    """What stands behind the status; the standard's own words if None."""
    listing: bytes = b"{}"
    listing_headers: dict[str, str] = field(default_factory=dict)
    payload: bytes = b""
    payload_headers: dict[str, str] = field(default_factory=dict)
    raw_listing: Callable[[], Iterable[bytes]] | None = None
    """What is sent instead of the listing, headers and all; then the connection ends."""
    raw_file: Callable[[], Iterable[bytes]] | None = None
    """The same for files."""
    redirect: str | None = None
    """Where every file lies instead."""
    redirect_bytes: int = 0
    """Length of the body that comes with the redirect."""
    files_asked: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    sent_bytes: int = 0


class _Server(HttpServer):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.hub = HostileHub(self.url)


@contextlib.contextmanager
def hostile_hub() -> Iterator[HostileHub]:
    """Serve until the block ends."""
    with serving(_Server()) as server:
        yield server.hub


@functools.lru_cache(maxsize=1)
def _spaces(size_bytes: int) -> bytes:
    return b" " * size_bytes


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    server: _Server

    def do_HEAD(self) -> None:
        """Describe a file as the test says, without its body."""
        hub = self.server.hub
        hub.authorizations.append(self.headers["Authorization"])
        if hub.raw_file is not None:
            self._send_raw(hub.raw_file())
            return
        headers = {"Content-Length": str(len(hub.payload)), **hub.payload_headers}
        self.send_response(200 if hub.redirect is None else 302, hub.reason)
        if hub.redirect is not None:
            headers |= {"Location": hub.redirect, "Content-Length": "0"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        """Answer anything."""
        hub = self.server.hub
        hub.authorizations.append(self.headers["Authorization"])
        is_listing = self.path.startswith("/api/")
        raw = hub.raw_listing if is_listing else hub.raw_file
        if raw is not None:
            self._send_raw(raw())
            return
        if is_listing:
            self._send(hub.status, hub.listing, hub.listing_headers)
            return
        hub.files_asked.append(self.path)
        if hub.redirect is not None:
            self._send(302, _spaces(hub.redirect_bytes), {"Location": hub.redirect})
            return
        if self.headers["Range"] is None:
            self._send(200, hub.payload, hub.payload_headers)
            return
        begin, end = self.headers["Range"].removeprefix("bytes=").split("-")
        part = hub.payload[int(begin) : int(end or len(hub.payload) - 1) + 1]
        headers = {"Content-Range": f"bytes {begin}-{end}/{len(hub.payload)}"}
        self._send(206, part, {**headers, **hub.payload_headers})

    def _send_raw(self, parts: Iterable[bytes]) -> None:
        self.close_connection = True
        for part in parts:
            self.wfile.write(part)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status, self.server.hub.reason)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        for begin in range(0, len(body), 1 << 16):
            self.wfile.write(body[begin : begin + (1 << 16)])
            self.server.hub.sent_bytes += len(body[begin : begin + (1 << 16)])
