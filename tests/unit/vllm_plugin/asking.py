"""A request to an ASGI application of the plugin, without an event loop or a server."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]


async def toy_app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[..., Awaitable[None]]
) -> None:
    """Send back what arrived: the scope and the whole body."""
    body, more = b"", scope["type"] == "http"
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "toy", "scope": scope, "body": body})


def ask(
    app: Any,
    path: str = "/v1/chat/completions",
    headers: Headers | None = None,
    *,
    kind: str = "http",
    method: str = "POST",
    pieces: Iterable[bytes] = (b"",),
) -> list[Message]:
    """Return what a client sees sent for one request, whose body comes in these pieces."""
    sent: list[Message] = []
    waiting = list(pieces)

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    scope: Message = {"type": kind, "path": path, "headers": headers or []}
    if kind == "http":
        scope = {**scope, "method": method, "raw_path": path.encode(), "query_string": b"key=1"}
    with contextlib.suppress(StopIteration):
        app(scope, receive, send).send(None)  # Nothing in it waits, so it needs no event loop.
    return sent
