"""Demands the API key on every path but /health; standard library only.

vLLM's own check covers some routes only (`/invocations` and `/tokenize` answer without a key).
Use: `vllm serve --middleware sparkdeploy_vllm.key_middleware.RequireKey`.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health"})
KEY_VARIABLE = "VLLM_API_KEY"
_REFUSAL = json.dumps(
    {"error": {"message": "missing or wrong API key", "type": "authentication_error", "code": 401}}
).encode()


class RequireKey:
    """ASGI middleware; refuses to start without a key in VLLM_API_KEY (never an open door)."""

    def __init__(self, app: App, *, env: Mapping[str, str] = os.environ) -> None:
        key = env.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"sparkdeploy: RequireKey needs a key in {KEY_VARIABLE}")
        self.app = app
        self._key_digest = _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed, answer 401 (close a websocket) for everything else."""
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "API key required"})
        else:
            await _refuse(send)

    def _is_allowed(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["path"] in OPEN_PATHS:
            return True
        offered = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        if len(offered) != 1:
            return False
        scheme, _, key = offered[0].partition(b" ")
        # Digests are compared, so that neither the key's bytes nor its length decide the time.
        matches = hmac.compare_digest(_digest(key.strip()), self._key_digest)
        return scheme.lower() == b"bearer" and matches


async def _refuse(send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_REFUSAL)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSAL})


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
