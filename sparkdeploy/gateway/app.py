"""`sparkdeploy gateway`: the routes of a stack's one address, its figures and its page."""

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from sparkdeploy.errors import NodeError
from sparkdeploy.gateway.access import ClientAccess, error_response, read_keys
from sparkdeploy.gateway.fit import StackFit
from sparkdeploy.gateway.proxy import MODEL_ROUTES, Proxy
from sparkdeploy.gateway.scheduler import ModelPhase, ModelState
from sparkdeploy.gateway.stack import Stack
from sparkdeploy.gateway.turns import Deployments, Turns
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import visible_line

PAGE = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
OWN_HEADER = "x-sparkdeploy"
"""A page of another origin cannot send it without asking first."""
MAX_CONNECTIONS = 1024
MAX_OPEN_FILES = 4 * MAX_CONNECTIONS
"""Of clients, of servers, and of Docker."""
HEAD_LIMIT_S = 30.0
"""Of a request's head, and of what still comes of a request that was answered."""
GOODBYE_S = 10
METRICS = (
    ("swaps", "swaps_total", "counter", "Stops because another model needed the memory."),
    ("starts", "starts_total", "counter", "Starts that this gateway began."),
    ("failed_starts", "failed_starts_total", "counter", "Starts that failed."),
    ("refusals", "refusals_total", "counter", "Requests that were refused instead of served."),
    ("served", "requests_total", "counter", "Requests that were sent to the model's server."),
)


class TimedConnection(H11Protocol):
    """A client's connection, which is ended when no whole head comes in time.

    uvicorn waits for one without an end, and counts it among those that may be open.
    """

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def on_response_complete(self) -> None:
        self._wait_for_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(HEAD_LIMIT_S, self._end_idle)

    def _end_idle(self) -> None:
        # Before the first request there is no cycle.
        if getattr(self.cycle, "response_complete", True):
            self.transport.abort()


class Gateway:
    def __init__(self, stack: Stack, fit: StackFit, deployments: Deployments) -> None:
        self._stack = stack
        self._keys = read_keys(stack.keys_file)
        self._turns = Turns(stack, fit, deployments)
        self._proxy = Proxy(stack, self._turns)

    def app(self) -> Starlette:
        routes = [
            *(Route(path, self._page) for path in PAGE),
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/metrics", self._metrics),
            Route("/gateway/state", self._state),
            Route("/gateway/models/{name}/{verb}", self._change, methods=["POST"]),
            *(Route(path, self._proxy, methods=["POST"]) for path in MODEL_ROUTES),
        ]
        middleware = [Middleware(ClientAccess, stack=self._stack, keys=self._keys)]
        if self._stack.allowed_origins:
            origins = list(self._stack.allowed_origins)
            cors = Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
            middleware.insert(0, cors)
        return Starlette(
            routes=routes,
            middleware=middleware,
            lifespan=self._lifespan,
            exception_handlers={404: self._no_route, 405: self._no_route, Exception: self._mistake},
        )

    def server(self) -> uvicorn.Server:
        config = uvicorn.Config(
            self.app(),
            loop="asyncio",
            http=TimedConnection,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=GOODBYE_S,
        )
        return uvicorn.Server(config)

    def serve(self) -> None:
        """Serve until a signal; starts that go on then go on by themselves."""
        _allow_open_files()
        host, port = self._stack.host, self._stack.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        except OSError as error:
            raise NodeError(
                f"cannot listen at {host}, port {port}: {error.strerror}",
                hint=f"`sudo ss -ltnp sport = :{port}` shows who does; `port:` in the stack file",
            ) from error
        # asyncio does so for sockets of another making alone; a token would wait for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # It raises the signal that ended it once more, when all is closed.
        with listener, contextlib.suppress(KeyboardInterrupt):
            console.answer(f"{self._stack.name} listens at {host}, port {port}")
            self.server().run([listener])

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with self._turns.running(), contextlib.aclosing(self._proxy):
            yield

    async def _no_route(self, request: HttpRequest, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        known = ", ".join(MODEL_ROUTES)
        path = request.scope["path"]
        message = f"no such route: {request.method} {path}; models answer to {known}"
        return error_response(path, status, message)

    async def _mistake(self, request: HttpRequest, error: Exception) -> Response:
        # Its text may have something of the request, which is written nowhere.
        path = request.scope["path"]
        console.warn(f"unexpected {type(error).__name__} for {visible_line(path)}")
        return error_response(path, 500, "a mistake of the gateway")

    async def _page(self, request: HttpRequest) -> Response:
        name, kind = PAGE[request.scope["path"]]
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        return Response(text, media_type=kind, headers=PAGE_HEADERS)

    async def _health(self, _request: HttpRequest) -> Response:
        return PlainTextResponse("ok\n")

    async def _models(self, _request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": list(self._model_cards())})

    async def _model(self, request: HttpRequest) -> Response:
        wanted = request.path_params["name"]
        for card in self._model_cards():
            if card["id"] == wanted:
                return JSONResponse(card)
        message = f"The model `{wanted[:200]}` does not exist"
        return error_response(request.scope["path"], 404, message, "model_not_found")

    def _model_cards(self) -> Iterator[dict[str, Any]]:
        for model in self._stack.models:
            state = self._turns.scheduler.states[model.name].phase.value
            for name in (model.name, *model.other_names):
                card = {"id": name, "object": "model", "created": 0, "owned_by": "sparkdeploy"}
                yield {**card, "root": model.name, "parent": None, "state": state}

    async def _state(self, _request: HttpRequest) -> Response:
        turns = self._turns
        turns.watched_s = time.monotonic()
        nodes = turns.looked.nodes if turns.looked is not None else ()
        memory = [
            {"name": it.name, "total": it.total_bytes, "available": it.available_bytes}
            for it in nodes
        ]
        models = [self._model_state(it) for it in turns.scheduler.states.values()]
        content = {"name": self._stack.name, "problem": turns.problem}
        return JSONResponse({**content, "nodes": memory, "models": models})

    def _model_state(self, state: ModelState) -> dict[str, Any]:
        model, turns = state.model, self._turns
        look = turns.looked.models.get(model.name) if turns.looked is not None else None
        return {
            "name": model.name,
            "recipe": model.recipe,
            "aliases": [*model.other_names],
            "keep": model.keep,
            "state": state.phase.value,
            "cause": state.cause,
            "running": len(state.running),
            "waiting": self._waiting(model.name),
            "tokens_per_s": look.tokens_per_s if look is not None else None,
            "start_s": state.start_s,
        }

    def _waiting(self, name: str) -> int:
        return sum(it.model == name and it.request > 0 for it in self._turns.scheduler.queue)

    async def _change(self, request: HttpRequest) -> Response:
        name, verb = request.path_params["name"], request.path_params["verb"]
        path = request.scope["path"]
        if OWN_HEADER not in request.headers:
            return error_response(path, 403, f"the header {OWN_HEADER} is missing")
        if name not in self._turns.scheduler.states or verb not in {"start", "stop"}:
            return error_response(path, 404, "no such model, or neither start nor stop")
        (self._turns.start if verb == "start" else self._turns.stop)(name)
        return JSONResponse(self._model_state(self._turns.scheduler.states[name]), 202)

    async def _metrics(self, _request: HttpRequest) -> Response:
        text = "\n".join(self._metric_lines()) + "\n"
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def _metric_lines(self) -> Iterator[str]:
        scheduler = self._turns.scheduler
        for key, name, kind, about in METRICS:
            counts = {it: scheduler.counts[key, it] for it in scheduler.states}
            yield from _family(name, kind, about, counts)
        states = scheduler.states
        running = {name: len(it.running) for name, it in states.items()}
        yield from _family("running_requests", "gauge", "Requests being answered.", running)
        waiting = {name: self._waiting(name) for name in states}
        yield from _family("waiting_requests", "gauge", "Requests waiting for a model.", waiting)
        took = {name: it.start_s for name, it in states.items() if it.start_s is not None}
        yield from _family("last_start_seconds", "gauge", "What the last start took.", took)
        is_ready = {name: int(it.phase is ModelPhase.READY) for name, it in states.items()}
        yield from _family("ready", "gauge", "Whether a model answers.", is_ready)


def _allow_open_files() -> None:
    """Let as many connections be open as may be: a shell allows 1,024 files, often."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _family(name: str, kind: str, about: str, values: dict[str, Any]) -> Iterator[str]:
    full = f"sparkdeploy_gateway_{name}"
    yield f"# HELP {full} {about}"
    yield f"# TYPE {full} {kind}"
    for model, value in values.items():
        yield f'{full}{{model="{model}"}} {value}'
