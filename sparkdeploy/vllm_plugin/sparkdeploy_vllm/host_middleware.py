"""Answers a server on loopback by its own names only; standard library.

A web page whose name is made to lead to 127.0.0.1 (DNS rebinding) is of the server's own origin
for a browser: no CORS rule applies, and only the Host header still bears the page's name.
Use: `vllm serve --middleware sparkdeploy_vllm.host_middleware.RequireOwnHost`.
"""

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping

from sparkdeploy_vllm.asgi import App, Receive, Scope, Send, answer_json
from sparkdeploy_vllm.template_arguments import DropTokenizerArguments

ALLOWED_HOSTS_VARIABLE = "SPARKDEPLOY_ALLOWED_HOSTS"
"""More names, with commas between: of a proxy that passes on what its clients call it."""
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]@/\s]+)(:[0-9]{1,5})?")
_REFUSAL = {
    "message": "this server does not answer to that Host; its recipe may allow more: "
    f"serve.env: {{{ALLOWED_HOSTS_VARIABLE}: NAME}}",
    "type": "misdirected_request",
    "code": 421,
}


class RequireOwnHost:
    """ASGI middleware; answers 421 to a Host that is none of this machine's."""

    def __init__(
        self,
        app: App,
        *,
        env: Mapping[str, str] = os.environ,
        hostname: Callable[[], str] = socket.gethostname,
    ) -> None:
        self.app: App = DropTokenizerArguments(app)
        own = hostname()
        allowed = [*env.get(ALLOWED_HOSTS_VARIABLE, "").split(","), own, own.partition(".")[0]]
        self._names = {_plain(name) for name in allowed if name.strip()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_own(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "unknown Host"})
        else:
            await answer_json(send, 421, {"error": _REFUSAL})

    def _is_own(self, scope: Scope) -> bool:
        """A browser always sends one; a program of HTTP/1.0 may send none."""
        named = [value for name, value in scope["headers"] if name.lower() == b"host"]
        if len(named) != 1:
            return not named
        found = _AUTHORITY.fullmatch(named[0].decode("latin-1"))
        return found is not None and self._is_known(_plain(found[1]))

    def _is_known(self, name: str) -> bool:
        # Browsers and resolvers lead every name below .localhost to this machine.
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return False


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")
