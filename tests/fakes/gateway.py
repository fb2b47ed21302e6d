"""A gateway over real sockets, before servers that do what a test says."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.gateway.app import Gateway
from sparkdeploy.gateway.deployments import DeploymentLook, NodeMemory, StackLook, Upstream
from sparkdeploy.gateway.fit import ModelFit, StackFit
from sparkdeploy.gateway.scheduler import Sighting
from sparkdeploy.gateway.stack import ModelEntry, Stack
from sparkdeploy.node.ports import listening_sockets
from sparkdeploy.recipe.answers import TEXT, TEXT_AND_SPEECH
from sparkdeploy.recipe.document import ValueOrigin
from tests.fakes.http_server import Handler, HttpServer

WAIT_S = 20.0


class ModelServer(HttpServer):
    """Answers with what it was sent; `stream: true` gets as many events as `n` says."""

    request_queue_size = 256

    def __init__(self, name: str, handler: type[ModelHandler] | None = None) -> None:
        super().__init__(handler or ModelHandler)
        self.name = name
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.left = threading.Event()
        """Set when a client has gone in the middle of an answer."""
        self.began = threading.Event()


class ModelHandler(Handler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def post(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sent = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.path, sent, raw))
        is_json = "json" in (self.headers.get("Content-Type") or "")
        body = json.loads(raw) if is_json else {}
        if body.get("fail"):
            self.send(int(body["fail"]), {"error": {"message": "no"}})
        elif body.get("stream"):
            self._stream(body)
        else:
            self.server.began.set()
            assert self.server.go_on.wait(WAIT_S)
            self.send(200, {"model": self.server.name, "got": len(raw)})

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("X-Own", "kept")
        self.send_header("Set-Cookie", "a=b")
        self.end_headers()
        try:
            for number in range(body.get("n", 3)):
                self._chunk(
                    b'data: {"model": "%s", "i": %d}\n\n' % (self.server.name.encode(), number)
                )
                self.server.began.set()
                if number == body.get("pause_at", -1):
                    assert self._goes_on()
                if number == body.get("die_at", -1):
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except ConnectionError:
            self.server.left.set()
            raise

    def _goes_on(self) -> bool:
        """Wait until the test lets it; a client that goes away meanwhile is noticed."""
        self.connection.settimeout(0.01)
        for _ in range(int(WAIT_S * 100)):
            if self.server.go_on.is_set():
                self.connection.settimeout(WAIT_S)
                return True
            with contextlib.suppress(TimeoutError):
                if not self.connection.recv(1):
                    raise ConnectionResetError
        return False

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


class ScriptedDeployments:
    """Models that start when the gateway says so; each is a server of its own."""

    def __init__(self, handler: type[ModelHandler] | None = None) -> None:
        self.servers: dict[str, ModelServer] = {}
        self.handler = handler
        self.threads: dict[str, threading.Thread] = {}
        self.dead: dict[str, str] = {}
        self.failing: dict[str, str] = {}
        self.starts: list[str] = []
        self.stops: list[str] = []
        self.may_start = threading.Event()
        self.may_start.set()
        self.docker_answers = True
        self.looks = 0
        self.keys: dict[str, str] = {}

    def look(self, *, with_figures: bool = False) -> StackLook:
        self.looks += 1
        if not self.docker_answers:
            raise NodeError("docker does not answer")
        models = {name: self._look_at(name) for name in ("a", "b", "c")}
        return StackLook(models, (NodeMemory("<b>spark</b>", 128 << 30, 28 << 30),))

    def _look_at(self, name: str) -> DeploymentLook:
        if name in self.servers:
            upstream = self.upstream(name)
            answers = TEXT_AND_SPEECH if name == "a" else TEXT
            return DeploymentLook(Sighting.HEALTHY, upstream, tokens_per_s=51.0, answers=answers)
        if name in self.dead:
            return DeploymentLook(Sighting.DEAD, cause=self.dead[name])
        return DeploymentLook(Sighting.STOPPED)

    def upstream(self, name: str) -> Upstream:
        server = self.servers[name]
        sockets = listening_sockets(server.server_port)
        return Upstream(server.url, f"served-{name}", self.keys.get(name), sockets)

    def start(self, model: ModelEntry) -> Upstream:
        self.starts.append(model.name)
        assert self.may_start.wait(WAIT_S)
        if model.name in self.failing:
            raise UnhealthyError(self.failing[model.name], hint="take another")
        return self.serve(model.name)

    def serve(self, name: str) -> Upstream:
        self.dead.pop(name, None)
        server = ModelServer(name, self.handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        self.servers[name], self.threads[name] = server, thread
        return self.upstream(name)

    def stop(self, model: ModelEntry) -> None:
        self.stops.append(model.name)
        self.end(model.name)

    def end(self, name: str, cause: str = "") -> None:
        # Both now: who sees the death starts another one under this name.
        server, thread = self.servers.pop(name), self.threads.pop(name)
        if cause:
            self.dead[name] = cause
        server.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
        for error in server.errors:
            raise error

    def end_all(self) -> None:
        self.may_start.set()
        for name in list(self.servers):
            self.end(name)


def stack_of(**changes: Any) -> Stack:
    """Return a stack of `a` and `b`, which exclude each other, and `c`, which fits beside both."""
    fast: Any = {"a-cold": {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}}
    models = (
        ModelEntry(name="a", recipe="recipe-a", aliases=fast),
        ModelEntry(name="b", recipe="recipe-b"),
        ModelEntry(name="c", recipe="recipe-c"),
    )
    values = {
        "name": "home",
        "path": Path("home.yaml"),
        "origin": ValueOrigin("home.yaml", 1),
        "host": "127.0.0.1",
        "port": 8800,
        "allowed_hosts": (),
        "allowed_origins": (),
        "keys_file": None,
        "smallest_stay_s": 0,
        "longest_wait_s": 600,
        "models": models,
    }
    return Stack(**{**values, **changes})


def keys_in(folder: Path, text: str = "") -> Path:
    """Write a file of clients' keys that its user alone may read."""
    path = folder / "keys.txt"
    path.touch(0o600)
    path.write_text(text)
    return path


def fit_of(stack: Stack) -> StackFit:
    sizes = {"a": 6, "b": 6, "c": 3}
    models = (ModelFit(it.name, it.keep, {"memory": sizes[it.name]}) for it in stack.models)
    return StackFit({"memory": 10}, tuple(models))


@contextlib.contextmanager
def gateway(stack: Stack, deployments: ScriptedDeployments) -> Iterator[httpx2.Client]:
    """Yield a client of a gateway that serves the stack on a free port."""
    server = Gateway(stack, fit_of(stack), deployments).server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            with httpx2.Client(base_url=url, timeout=WAIT_S, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(WAIT_S)
            deployments.end_all()
    assert not thread.is_alive()
