"""Who may ask: client keys, names of this machine, and the pages of browsers; errors as clients
of OpenAI and of Anthropic read them."""

import hashlib
import hmac
import ipaddress
import json
import os
import re
import shlex
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sparkdeploy.errors import RecipeError
from sparkdeploy.gateway.stack import Stack
from sparkdeploy.stored_json import open_regular

MAX_KEYS_BYTES = 1 << 16
SHORTEST_KEY = 16
WITHOUT_KEY = frozenset({"/health", "/", "/page.js", "/page.css"})
"""What says nothing of any model."""
_KINDS = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("invalid_request_error", "authentication_error"),
    403: ("invalid_request_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    408: ("invalid_request_error", "invalid_request_error"),
    413: ("invalid_request_error", "request_too_large"),
    503: ("server_error", "overloaded_error"),
}
"""Of a status, `type` in OpenAI's errors and in Anthropic's."""
_OTHER_KINDS = ("server_error", "api_error")


def error_body(path: str, status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """Return an error in the shape that clients of this route read."""
    openai, anthropic = _KINDS.get(status, _OTHER_KINDS)
    # Half a surrogate pair, which JSON may name, cannot be written.
    message = message.encode("utf-8", "replace").decode()
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": anthropic, "message": message}}
    return {"error": {"message": message, "type": openai, "param": None, "code": code}}


def error_response(
    path: str,
    status: int,
    message: str,
    code: str | None = None,
    retry_after_s: float | None = None,
) -> JSONResponse:
    headers = {"Retry-After": str(int(retry_after_s) + 1)} if retry_after_s is not None else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(path, status, message, code), status, headers)


def read_keys(path: Path | None) -> tuple[bytes, ...]:
    """Return the hashes of clients' keys, one a line; RecipeError for a file others can read."""
    if path is None:
        return ()
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_KEYS_BYTES + 1)
    except OSError as error:
        new = f"(umask 077; openssl rand -hex 32 > {shlex.quote(str(path))})"
        raise RecipeError(f"keys file {path}: {error.strerror}", hint=new) from error
    fix = f"chmod 600 {shlex.quote(str(path))}"
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise RecipeError(f"keys file {path}: others can read or change it", hint=fix)
    if status.st_uid not in {os.geteuid(), 0}:
        raise RecipeError(f"keys file {path} is another user's", hint="make one of your own")
    lines = [line.strip() for line in content.splitlines()]
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if len(content) > MAX_KEYS_BYTES or not keys:
        what = "is too large" if keys else "has no key"
        raise RecipeError(f"keys file {path} {what}", hint="one key a line: openssl rand -hex 32")
    for number, line in enumerate(lines, 1):
        is_plain = line.isascii() and line.decode("ascii", "replace").isprintable()
        if line in keys and (len(line) < SHORTEST_KEY or b" " in line or not is_plain):
            raise RecipeError(
                f"keys file {path}, line {number}: no key of at least {SHORTEST_KEY} letters, "
                "digits and signs",
                hint="openssl rand -hex 32",
            )
    return tuple(hashlib.sha256(key).digest() for key in keys)


class ClientAccess:
    """Lets a request through to the app behind it, or refuses it."""

    def __init__(self, app: ASGIApp, stack: Stack, keys: tuple[bytes, ...]) -> None:
        self._app = app
        self._keys = keys
        own = ("localhost", socket.gethostname(), stack.host, *stack.allowed_hosts)
        self._hosts = {it.lower() for it in own}
        self._origins = {it.lower() for it in stack.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        status, message, code = refused
        await error_response(scope["path"], status, message, code)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            why = "unknown host name; `allowed_hosts` of the stack file names those to answer to"
            return 403, why, "unknown_host"
        origins = headers.getlist("origin")
        own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
        if any(it.lower() not in self._origins | own for it in origins):
            why = "a page of another origin; `allowed_origins` of the stack file names those to use"
            return 403, why, "unknown_origin"
        if self._keys and scope["path"] not in WITHOUT_KEY and not self._has_key(headers):
            return 401, "missing or wrong API key", "invalid_api_key"
        return None

    def _is_own(self, host: str) -> bool:
        """Say whether a host is an address or our own name: a page could have its own lead here."""
        try:
            parts = urlsplit(f"//{host}")
        except ValueError:
            return False
        name = (parts.hostname or "").lower()
        if parts.netloc != host or "@" in host:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = hashlib.sha256(given.encode("latin-1", "replace")).digest()
        # Each is compared, so that the time says nothing of which one is near.
        return sum(hmac.compare_digest(digest, key) for key in self._keys) > 0


MAX_FORM_PARTS = 100
MAX_HEAD_BYTES = 1024
"""Of a form's part, and of a content type: the library takes quadratic time over them."""
MAX_BOUNDARY = 70
MAX_VALUES = 1_000_000
"""While they are read nobody else is answered: it is a third of a second."""


class BadBodyError(Exception):
    """A body that names no model, or cannot be read; the message is for the client."""


@dataclass(frozen=True, slots=True)
class FormPart:
    name: str
    """Empty for a file's."""
    head: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class RequestBody:
    raw: bytes
    model: str
    is_stream: bool
    boundary: str = ""
    """Of a form; empty for JSON."""

    def for_server(self, served: str, defaults: Mapping[str, object]) -> bytes:
        """Return the body with the server's own name of the model, and what it leaves out."""
        if self.model == served and not defaults:
            return self.raw
        # A body waits for long, and its values may take many times the bytes of its text.
        if not self.boundary:
            return json.dumps({**defaults, **json.loads(self.raw), "model": served}).encode()
        parts = [
            replace(it, value=served.encode()) if it.name == "model" else it
            for it in _form_parts(self.raw, self.boundary)
        ]
        there = {it.name for it in parts}
        added = [_part(name, value) for name, value in defaults.items() if name not in there]
        mark = f"--{self.boundary}".encode("latin-1")
        pieces = (b"%s\r\n%s\r\n\r\n%s\r\n" % (mark, it.head, it.value) for it in added + parts)
        return b"".join(pieces) + mark + b"--\r\n"


def read_body(raw: bytes, content_type: str) -> RequestBody:
    """Return what a request's body names; BadBodyError where it cannot be read."""
    if len(content_type) > MAX_HEAD_BYTES:
        raise BadBodyError(f"the content type is longer than {MAX_HEAD_BYTES} bytes")
    header = Message()
    header["content-type"] = re.sub(r"[\r\n]", " ", content_type)
    boundary = ""
    try:
        if header.get_content_type() == "multipart/form-data":
            boundary = str(header.get_param("boundary", ""))
            parts = _form_parts(raw, boundary)
            content: Any = {it.name: it.value.decode(errors="replace") for it in parts if it.name}
        elif sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise BadBodyError(f"the request's body has more than {MAX_VALUES} values")
        else:
            content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadBodyError(f"the request's body cannot be read: {error}") from error
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, str) or not model:
        raise BadBodyError("the request names no model: `model` has to be a text")
    stream = content.get("stream")
    is_stream = stream in {"true", "True", "1"} if boundary else stream is True
    return RequestBody(raw, model, is_stream, boundary)


def _form_parts(raw: bytes, boundary: str) -> list[FormPart]:
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise ValueError("the form has no boundary")
    mark = f"\r\n--{boundary}".encode("latin-1")
    _, *parts = (b"\r\n" + raw).split(mark, MAX_FORM_PARTS + 1)
    if not parts or not parts.pop().startswith(b"--"):
        raise ValueError("the form is not whole, or has too many parts")
    return [_read_part(it) for it in parts]


def _read_part(part: bytes) -> FormPart:
    head, end, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    if not end or len(head) > MAX_HEAD_BYTES:
        raise ValueError("a part of the form has no head, or too long a one")
    about = message_from_bytes(head)
    name = about.get_param("name", None, "content-disposition")
    is_file = about.get_param("filename", None, "content-disposition") is not None
    return FormPart(name if isinstance(name, str) and not is_file else "", head, value)


def _part(name: str, value: object) -> FormPart:
    text = value if isinstance(value, str) else json.dumps(value)
    return FormPart(name, f'Content-Disposition: form-data; name="{name}"'.encode(), text.encode())
