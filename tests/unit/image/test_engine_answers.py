"""What Docker Engines of different versions and stores say, and how it is read."""

from __future__ import annotations

import contextlib
import io
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.node import reports
from sparkdeploy.node.host import DockerHost

CONTAINERD = {
    "ServerVersion": "29.0.0",
    "Architecture": "aarch64",
    "DockerRootDir": "/data/docker",
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
}
CLASSIC = {**CONTAINERD, "DriverStatus": [["Backing Filesystem", "extfs"]]}
NO_DOCKERFILE = "Cannot locate specified Dockerfile: Dockerfile"


@contextlib.contextmanager
def engine(folder: Path, path: str, status: int, body: object) -> Iterator[DockerHost]:
    """Serve one answer to POST of a path, and what the SDK asks first; no real engine does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            self.answer(200, {"ApiVersion": "1.60"})

        def do_POST(self) -> None:
            # What is left unread when a connection ends resets it, and the answer may be lost.
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            while self.headers.get("Transfer-Encoding") and self.rfile.readline() != b"0\r\n":
                pass
            assert self.path.startswith(f"/v1.60{path}")
            self.answer(status, body)

        def answer(self, code: int, content: object) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def address_string(self) -> str:
            return "here"

        def log_message(self, *_: Any) -> None:
            pass

    address = str(folder / "docker.sock")
    with socketserver.ThreadingUnixStreamServer(address, Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            with DockerHost(f"unix://{address}") as host:
                yield host
        finally:
            server.shutdown()


@pytest.mark.outside
@pytest.mark.parametrize(
    ("status", "message", "is_gone"),
    [
        (500, NO_DOCKERFILE, False),
        (501, "not implemented", True),
        (400, "the legacy builder was removed", True),
        (400, "builder version 1 is no longer supported", True),
        (410, "build v1 has been removed", True),
        (404, "no such file: Dockerfile", False),
        (403, "authorization denied by plugin builder-policy", False),
        (410, "POST /build was removed; build the Dockerfile with BuildKit", True),
        (200, "the legacy builder was removed, use BuildKit", True),
    ],
)
def test_an_engine_without_a_builder_is_known_by_its_answer(
    tmp_path: Path, status: int, message: str, is_gone: bool
) -> None:
    with engine(tmp_path, "/build", status, {"message": message}) as host:
        refusal = host.builder_refusal()
    assert (refusal is not None) is is_gone
    assert message in (refusal or message)


@pytest.mark.outside
def test_a_load_that_fails_in_the_words_of_new_engines_fails(tmp_path: Path) -> None:
    body = {"errorDetail": {"message": "unexpected end"}}
    with (
        engine(tmp_path, "/images/load", 200, body) as host,
        pytest.raises(NodeError, match="load images: unexpected end"),
    ):
        host.load_images(io.BytesIO(b""))


@pytest.mark.parametrize(
    "message",
    [
        {"error": "no space\n", "errorDetail": {"message": "no space"}},
        {"error": "no space"},
        {"errorDetail": {"code": 1, "message": "no space"}},
    ],
)
def test_a_failed_build_is_read_from_old_and_new_engines(message: dict[str, Any]) -> None:
    assert reports.read_build_event(message).error == "no space"


@pytest.mark.parametrize(
    ("said", "folder"),
    [
        (CLASSIC, "/data/docker"),
        ({**CLASSIC, "Containerd": {"Address": "/run/containerd/containerd.sock"}}, "/data/docker"),
        (CONTAINERD, "/data/docker"),
        ({**CONTAINERD, "Containerd": {"Address": "/run/docker/containerd/x"}}, "/data/docker"),
        (
            {**CONTAINERD, "Containerd": {"Address": "/run/containerd/containerd.sock"}},
            "/var/lib/containerd",
        ),
    ],
)
def test_the_folder_that_fills_up_is_the_one_of_the_store(
    said: dict[str, Any], folder: str
) -> None:
    assert reports.read_engine_info(said).root_dir == folder
