"""Every HTTP answer has a size and a clock for the whole of it, and sends nobody elsewhere.

Only `sparkdeploy.bounded_http` makes connections of requests. Beside it are the client of the hub's
own library (checkpoint/hub_client.py, whose downloads tests/unit/checkpoint ends), the sockets of
bench, which are tried here, the gateway, which passes on what the servers of its own deployments
send for as long as its client reads, and what runs in containers, where the guard asks its own
server.
"""

from __future__ import annotations

import ast
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from sparkdeploy import bounded_http
from sparkdeploy.bench import streams
from sparkdeploy.bench.streams import Streams
from sparkdeploy.checkpoint import hub, hub_client
from sparkdeploy.errors import CheckpointError, UnhealthyError
from sparkdeploy.image import network
from sparkdeploy.server import client
from sparkdeploy.server.client import ServedModel
from sparkdeploy.settings import BuildNetwork
from sparkdeploy.upkeep import setup
from tests import syntax
from tests.unit.conftest import REPOSITORY

PACKAGE = REPOSITORY / "sparkdeploy"
THE_CLIENTS = {
    *("bounded_http.py", "checkpoint/hub_client.py", "checkpoint/ranges.py"),
    "gateway/proxy.py",
}
IN_A_CONTAINER = ("image/inside/", "vllm_plugin/")
SENDING = {
    *("get", "post", "put", "patch", "delete", "head", "options", "request"),
    *("Session", "session"),
}
LIBRARIES = {
    *("aiohttp", "http.client", "httpx", "httpx2", "urllib.request", "urllib3"),
    *("requests.adapters", "requests.api", "requests.sessions"),
}
READING = {"iter_content", "iter_lines"}
HEAD = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "an endless body": (HEAD + b"\r\n", b"x" * 65536, 0.0),
    "a body that trickles": (HEAD + b"Content-Length: 1000000\r\n\r\n", b"x", 0.01),
    "headers that trickle": (HEAD + b"X-Slow: ", b"x", 0.01),
}
LIMIT_S = 0.2
LIMIT_BYTES = 1 << 20


def sends_by_itself(source: str) -> Iterator[str]:
    """Yield what makes a connection or reads a body without a limit."""
    for node in ast.walk(syntax.tree(source)):
        if isinstance(node, ast.Attribute):
            of_requests = ast.unparse(node.value) == "requests" and node.attr in SENDING
            if of_requests or node.attr in READING:
                yield ast.unparse(node)
        elif isinstance(node, ast.Import):
            yield from (it.name for it in node.names if it.name in LIBRARIES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [it.name for it in node.names if not it.name.endswith("Error")]
            if node.module in LIBRARIES or node.module == "requests":
                yield from (it for it in names if node.module != "requests" or it in SENDING)
            yield from (it for it in names if f"{node.module}.{it}" in LIBRARIES)


def test_only_the_bounded_client_sends_requests() -> None:
    found = {
        name: kinds
        for path in sorted(PACKAGE.rglob("*.py"))
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(IN_A_CONTAINER)
        and (kinds := list(sends_by_itself(path.read_text(encoding="utf-8"))))
    }
    assert set(found) == THE_CLIENTS, found


@pytest.mark.parametrize(
    "text",
    [
        *("requests.get(url)", "with requests.Session() as s: pass"),
        *("class Own(requests.Session): pass", "from requests import Session"),
        *("from requests.sessions import Session", "import http.client"),
        *("from http import client, server", "import urllib.request", "import httpx2"),
        "for chunk in response.iter_content(None): pass",
    ],
)
def test_the_law_sees_a_request_of_ones_own(text: str) -> None:
    assert list(sends_by_itself(text))


@contextlib.contextmanager
def answering(begin: bytes, piece: bytes, pause_s: float) -> Iterator[int]:
    """Yield a port whose answers go on until the client leaves."""
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(begin)
            while not ended.wait(pause_s):
                connection.sendall(piece)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)


def ask_model(ask: Callable[[ServedModel], object]) -> Callable[[str, Path], None]:
    def asked(url: str, _: Path) -> None:
        with ServedModel(url, model="main") as model, pytest.raises(UnhealthyError):
            ask(model)

    return asked


def stream(model: ServedModel) -> None:
    with model.streamed("/v1/chat/completions", {}, read_timeout_s=LIMIT_S) as pieces:
        for _ in pieces:
            pass


def ask_hub(url: str, folder: Path) -> None:
    asked = hub.Hub(url, folder, sleep=lambda _: None, attempts=1)
    with pytest.raises(CheckpointError):
        asked.describe("org/name", "main")


def settings(url: str) -> Any:
    registry = url.removeprefix("http://")
    hosts = SimpleNamespace(container_registry=registry)
    return SimpleNamespace(hosts=hosts, build=BuildNetwork())


def knock(url: str, _: Path) -> None:
    network.refusal(url, settings(url))


def ask_registry(url: str, _: Path) -> None:
    setup._registry_answers(settings(url))


def measure(url: str, _: Path) -> None:
    with Streams(url) as measuring:
        (exchange,) = measuring.round([{}])
    assert exchange.failure is not None


CLIENTS: dict[str, Callable[[str, Path], None]] = {
    "metrics": ask_model(lambda model: model.exposition(timeout_s=LIMIT_S)),
    "a deployment's answer": ask_model(lambda model: model.complete("x", 1, timeout_s=LIMIT_S)),
    "a deployment's stream": ask_model(stream),
    "the hub": ask_hub,
    "whether an index answers": knock,
    "whether a registry answers": ask_registry,
    "bench": measure,
}


class WithoutTls(bounded_http.BoundedSession):
    def get(self, url: str | bytes, **options: Any) -> requests.Response:
        assert options["verify"] is True, "no bundle was named"
        return super().get(str(url).replace("https:", "http:"), **options)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in {
        client: ("STREAM_LIMIT_S",),
        hub_client: ("ANSWER_LIMIT_S",),
        network: ("KNOCK_TIMEOUT_S",),
        setup: ("REGISTRY_TIMEOUT_S",),
        streams: ("LONGEST_S", "PAUSE_S"),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, LIMIT_S)
    monkeypatch.setattr(bounded_http, "MAX_ANSWER_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(client, "MAX_STREAM_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(streams, "MAX_ANSWER_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(setup, "BoundedSession", WithoutTls)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("asking", CLIENTS)
def test_an_answer_without_an_end_is_given_up(asking: str, answer: str, tmp_path: Path) -> None:
    with answering(*ANSWERS[answer]) as port:
        began_s = time.monotonic()
        CLIENTS[asking](f"http://127.0.0.1:{port}", tmp_path)
        assert time.monotonic() - began_s < 10


def test_nothing_is_read_before_time_is_allowed() -> None:
    with (
        answering(HEAD + b"Content-Length: 0\r\n\r\n", b"", 1.0) as port,
        bounded_http.BoundedSession() as session,
    ):
        with pytest.raises(requests.Timeout):
            session.get(f"http://127.0.0.1:{port}", timeout=10)
        session.deadline.allow(10)
        assert session.get(f"http://127.0.0.1:{port}", timeout=10).status_code == 200


def test_a_server_that_falls_silent_is_waited_for_as_long_as_was_said() -> None:
    with (
        answering(HEAD + b"Content-Length: 1\r\n\r\n", b"", 1.0) as port,
        bounded_http.BoundedSession(60) as session,
    ):
        began_s = time.monotonic()
        with pytest.raises(requests.ReadTimeout):
            session.get(f"http://127.0.0.1:{port}", timeout=LIMIT_S)
        assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("target", ["/here", "http://127.0.0.1:9/elsewhere", "http://[x", "//x:y"])
def test_no_redirect_is_followed(target: str) -> None:
    head = f"HTTP/1.1 307 Elsewhere\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
    with answering(head, b"", 1.0) as port, bounded_http.BoundedSession(10) as session:
        answer = session.post(f"http://127.0.0.1:{port}", data="a prompt", timeout=10)
        assert (answer.status_code, answer.history) == (307, [])
