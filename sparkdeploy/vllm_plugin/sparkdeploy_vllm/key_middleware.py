"""Demands the API key on every path but /health; standard library only.

vLLM's own check covers some routes only (`/invocations` and `/tokenize` answer without a key).
Use: `vllm serve --middleware sparkdeploy_vllm.key_middleware.RequireKey`.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping

from sparkdeploy_vllm.asgi import App, Receive, Scope, Send, answer_json
from sparkdeploy_vllm.template_arguments import DropTokenizerArguments

HEALTH_PATH = "/health"
_PREFLIGHT_HEADERS = (b"origin", b"access-control-request-method")
_REQUESTED = b"access-control-request-"
KEY_VARIABLE = "VLLM_API_KEY"
_REFUSAL = {"message": "missing or wrong API key", "type": "authentication_error", "code": 401}


class RequireKey:
    """ASGI middleware; refuses to start without a key in VLLM_API_KEY.

    A browser asks before it sends the key (a CORS preflight, which cannot carry one). vLLM's own
    CORS layer, inside this one, answers from `--allowed-origins` and never looks at the path; it
    is asked about `/health` whatever the path was, so no preflight gets further than that. The 401
    carries no CORS header, because which origins are allowed is not known here.
    """

    def __init__(self, app: App, *, env: Mapping[str, str] = os.environ) -> None:
        key = env.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"sparkdeploy: RequireKey needs a key in {KEY_VARIABLE}")
        # Inside this one: no body is read of a client without the key.
        self.app: App = DropTokenizerArguments(app)
        self._key_digest = _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self.app(scope, receive, send)
        elif _is_preflight(scope):
            await self.app(_without_a_target(scope), receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "API key required"})
        else:
            await answer_json(send, 401, {"error": _REFUSAL}, [(b"www-authenticate", b"Bearer")])

    def _is_allowed(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["path"] == HEALTH_PATH:
            return True
        offered = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        if len(offered) != 1:
            return False
        scheme, _, key = offered[0].partition(b" ")
        # Digests are compared, so that neither the key's bytes nor its length decide the time.
        matches = hmac.compare_digest(_digest(key.strip()), self._key_digest)
        return scheme.lower() == b"bearer" and matches


def _is_preflight(scope: Scope) -> bool:
    """What browsers send, and nothing that is only like it: one of each header, and no body."""
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return False
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    names = [name for name, _ in headers]
    if any(names.count(name) != 1 for name in _PREFLIGHT_HEADERS):
        return False
    lengths = [value for name, value in headers if name == b"content-length"]
    return lengths in ([], [b"0"]) and b"transfer-encoding" not in names


def _without_a_target(scope: Scope) -> Scope:
    """The preflight as the CORS layer needs it: who asks, and for which method and headers."""
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    wanted = [it for it in headers if it[0] == b"origin" or it[0].startswith(_REQUESTED)]
    path = {"path": HEALTH_PATH, "raw_path": HEALTH_PATH.encode(), "query_string": b""}
    return {**scope, **path, "headers": wanted}


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
