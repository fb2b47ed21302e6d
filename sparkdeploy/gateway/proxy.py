"""Passes a request on to the server of its model, and the answer back as it comes."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from sparkdeploy.gateway.access import (
    BadBodyError,
    RequestBody,
    error_body,
    error_response,
    read_body,
)
from sparkdeploy.gateway.deployments import Upstream
from sparkdeploy.gateway.stack import ModelEntry, Stack
from sparkdeploy.gateway.turns import NotServedError, RequestTurn, Turns
from sparkdeploy.node.ports import listening_sockets
from sparkdeploy.recipe.answers import ROUTES

MODEL_ROUTES = (
    *(path for paths in ROUTES.values() for path in paths),
    *("/v1/messages/count_tokens", "/tokenize", "/detokenize"),
)
MAX_BODY_BYTES = 64 << 20
MAX_BODIES_BYTES = 512 << 20
"""Of all requests that are read or wait."""
BODY_LIMIT_S = 120.0
COMMENT_AFTER_S = 3.0
COMMENT_EVERY_S = 10.0
SEND_AGAIN = 3
ANSWER_PAUSE_S = 3600.0
"""A long answer that is not streamed has no byte before its end; the guard ends hung servers."""
TIMEOUTS = {"timeout": httpx2.Timeout(ANSWER_PAUSE_S, connect=5.0, pool=None).as_dict()}
KEPT_OPEN_S = 2.0
"""Less than the 5 s after which vLLM closes a connection that nobody uses."""
SOCKETS_COUNT_S = 0.05
MAX_ERROR_BYTES = 1 << 16
HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection"),
    )
)
NOT_SENT = HOP_BY_HOP | {
    *("host", "content-length", "expect", "authorization", "x-api-key", "cookie"),
    *("origin", "referer", "forwarded"),
}
NOT_ANSWERED = HOP_BY_HOP | {"server", "date", "set-cookie"}


class AnswerCutError(Exception):
    """The server ended in the middle of an answer: the client's connection ends, too."""


@dataclass(slots=True)
class ClientAnswer:
    path: str
    send: Send
    has_begun: bool = False
    is_events: bool = False

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.has_begun = True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def piece(self, data: bytes, *, is_last: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def comment(self, text: str) -> None:
        """Let a client that waits for a stream know that there will be one."""
        if not self.has_begun:
            self.is_events = True
            kind = (b"content-type", b"text/event-stream; charset=utf-8")
            await self.begin(200, [kind, (b"cache-control", b"no-cache")])
        await self.piece(f": {text}\n\n".encode())

    async def fail(self, scope: Scope, status: int, message: str, wait_s: float | None) -> None:
        """Say why there is no answer, or no more of it."""
        if not self.has_begun:
            response = error_response(self.path, status, message, None, wait_s)
            await response(scope, _nothing_more, self.send)
            return
        if not self.is_events:
            raise AnswerCutError(message)
        await self.error_event(error_body(self.path, status, message))

    async def error_event(self, content: object) -> None:
        name = b"event: error\n" if self.path.startswith("/v1/messages") else b""
        event = b"\n\n%sdata: %s\n\n" % (name, json.dumps(content).encode())
        await self.piece(event, is_last=True)


class Proxy:
    """An ASGI app for the routes that name a model in their body."""

    def __init__(self, stack: Stack, turns: Turns) -> None:
        self._stack = stack
        self._turns = turns
        self._bodies_bytes = 0
        self._sockets: dict[int, tuple[float, frozenset[str]]] = {}
        """Who listens on a port, and when that was read."""
        self._names: dict[str, tuple[ModelEntry, Mapping[str, object]]] = {}
        for model in stack.models:
            self._names[model.name] = (model, {})
            for name, defaults in model.other_names.items():
                self._names[name] = (model, defaults)
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=KEPT_OPEN_S)
        self._client = httpx2.AsyncClient(limits=limits, trust_env=False, follow_redirects=False)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = ClientAnswer(scope["path"], send)
        headers = Headers(scope=scope)
        try:
            raw = await self._read(headers, receive)
        except _TooLargeError as error:
            await answer.fail(scope, error.status, str(error), None)
            return
        except TimeoutError:
            message = f"the request was not whole within {BODY_LIMIT_S:.0f} s"
            await answer.fail(scope, 408, message, None)
            return
        except ConnectionError:
            return
        try:
            await _until_gone(receive, self._answer(scope, headers, raw, answer))
        except AnswerCutError:
            return  # an answer that is not whole has its connection closed
        finally:
            self._bodies_bytes -= len(raw)

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        length = headers.get("content-length", "0")
        expected = int(length) if length.isdecimal() else 0
        raw = bytearray()
        try:
            self._require_room(raw, expected)
            async with asyncio.timeout(BODY_LIMIT_S):
                async for piece in _pieces(receive):
                    raw += piece
                    self._bodies_bytes += len(piece)
                    self._require_room(raw, expected)
        except BaseException:
            self._bodies_bytes -= len(raw)
            raise
        return bytes(raw)

    def _require_room(self, raw: bytearray, expected: int) -> None:
        if max(len(raw), expected) > MAX_BODY_BYTES:
            raise _TooLargeError(413, f"more than {MAX_BODY_BYTES >> 20} MiB")
        if self._bodies_bytes + max(expected - len(raw), 0) > MAX_BODIES_BYTES:
            raise _TooLargeError(503, "too many large requests at once")

    async def _answer(
        self, scope: Scope, headers: Headers, raw: bytes, answer: ClientAnswer
    ) -> None:
        try:
            body = read_body(raw, headers.get("content-type", ""))
            wanted = body.model
        except BadBodyError as error:
            await answer.fail(scope, 400, str(error), None)
            return
        if wanted not in self._names:
            known = ", ".join(self._names)
            message = f"The model `{wanted[:200]}` does not exist; there is: {known}"
            response = error_response(answer.path, 404, message, "model_not_found")
            await response(scope, _nothing_more, answer.send)
            return
        model, defaults = self._names[wanted]
        answers = self._turns.answers(model.name)
        if answers is not None and not answers.has(answer.path):
            has = ", ".join(path for task in answers.tasks for path in ROUTES[task])
            message = f"{model.name} does not answer {answer.path}; it answers {has}"
            await answer.fail(scope, 400, message, None)
            return
        patience_s = math.inf if body.is_stream else float(self._stack.longest_wait_s)
        for _ in range(SEND_AGAIN):
            with self._turns.turn(model.name, patience_s) as turn:
                try:
                    upstream = await self._wait(turn, body, answer)
                    request = _request(scope, headers, upstream, body, defaults)
                    is_there = self._is_same_server(upstream)
                    if is_there and await self._pass_on(scope, request, turn, answer):
                        return
                except NotServedError as error:
                    await answer.fail(scope, 503, str(error), error.retry_after_s)
                    return
                except httpx2.InvalidURL:
                    await answer.fail(scope, 400, "the query cannot be passed on", None)
                    return
            await self._turns.look_again()
        await answer.fail(scope, 503, f"{model.name} does not answer", 1.0)

    async def _wait(self, turn: RequestTurn, body: RequestBody, answer: ClientAnswer) -> Upstream:
        """Wait for the request's turn, with comments where a stream was asked for."""
        pause_s = COMMENT_EVERY_S if answer.has_begun else COMMENT_AFTER_S
        while body.is_stream:
            done, _ = await asyncio.wait([turn.upstream], timeout=pause_s)
            if done:
                break
            await answer.comment(f"waiting for {turn.model}")
            pause_s = COMMENT_EVERY_S
        return await turn.upstream

    def _is_same_server(self, upstream: Upstream) -> bool:
        """Say whether what was looked at still listens: no key goes to what took its port."""
        # The kernel's table may be long, and is read twenty times a second at most.
        if upstream.sockets is None:
            return True
        now_s = time.monotonic()
        read_s, sockets = self._sockets.get(upstream.port, (-math.inf, frozenset[str]()))
        if now_s - read_s > SOCKETS_COUNT_S or sockets != upstream.sockets:
            sockets = listening_sockets(upstream.port)
            self._sockets[upstream.port] = (now_s, sockets)
        return sockets == upstream.sockets

    async def _pass_on(
        self, scope: Scope, request: httpx2.Request, turn: RequestTurn, answer: ClientAnswer
    ) -> bool:
        """Send a request and return its answer to the client; False where no server was there."""
        sending = asyncio.create_task(self._exchange(request, answer))
        ends: list[asyncio.Future[Any]] = [sending, turn.cut]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                sending.cancel()  # nothing of it comes behind the error
                await asyncio.wait([sending])
                await answer.fail(scope, 503, turn.cut.result(), 1.0)
                return True
            await sending
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return False
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError):
            message = f"the server of {turn.model} ended in the middle of the answer"
            await answer.fail(scope, 502, message, None)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sending
        return True

    async def _exchange(self, request: httpx2.Request, answer: ClientAnswer) -> None:
        response = await self._client.send(request, stream=True)
        try:
            if answer.has_begun and not response.is_success:
                await answer.error_event(await _error_of(response, answer.path))
                return
            if response.is_redirect:
                raise httpx2.RemoteProtocolError("a server of ours sends nobody elsewhere")
            if not answer.has_begun:
                kind = response.headers.get("content-type", "")
                answer.is_events = kind.startswith("text/event-stream")
                await answer.begin(response.status_code, _to_client(response))
            async for piece in response.aiter_raw():
                await answer.piece(piece)
            await answer.piece(b"", is_last=True)
        finally:
            await response.aclose()


class _TooLargeError(Exception):
    def __init__(self, status: int, what: str) -> None:
        super().__init__(f"the request is too large: {what}")
        self.status = status


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a body as it comes; ConnectionError when its client goes away."""
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        yield message.get("body", b"")
        has_more = message.get("more_body", False)


async def _until_gone(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work, and give it up when the client goes away."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(work), asyncio.create_task(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


async def _nothing_more() -> dict[str, str]:
    return {"type": "http.disconnect"}


def _request(
    scope: Scope,
    headers: Headers,
    upstream: Upstream,
    body: RequestBody,
    defaults: Mapping[str, object],
) -> httpx2.Request:
    named = {it.strip().lower() for it in headers.get("connection", "").split(",")}
    kept = [
        (name, value)
        for name, value in headers.raw
        if (word := name.decode("latin-1").lower()) not in NOT_SENT | named
        and not word.startswith("x-forwarded-")
    ]
    if upstream.key is not None:
        kept.append((b"authorization", f"Bearer {upstream.key}".encode()))
    query = scope["query_string"].decode("latin-1")
    url = f"{upstream.base_url}{scope['path']}{f'?{query}' if query else ''}"
    content = body.for_server(upstream.served_name, defaults)
    return httpx2.Request("POST", url, headers=kept, content=content, extensions=TIMEOUTS)


def _to_client(response: httpx2.Response) -> list[tuple[bytes, bytes]]:
    named = {it.strip().lower() for it in response.headers.get("connection", "").split(",")}
    dropped = NOT_ANSWERED | named
    raw = ((name.lower(), value) for name, value in response.headers.raw)
    return [(name, value) for name, value in raw if name.decode("latin-1") not in dropped]


async def _error_of(response: httpx2.Response, path: str) -> object:
    """Return a server's error for a client that reads events by now."""
    text = b""
    async for piece in response.aiter_bytes():
        text += piece
        if len(text) > MAX_ERROR_BYTES:
            break
    try:
        return json.loads(text[:MAX_ERROR_BYTES])
    except ValueError:
        return error_body(path, response.status_code, text[:500].decode("utf-8", "replace"))
