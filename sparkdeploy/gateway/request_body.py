"""What a request asks for, and its body for the server: other bytes only where a name is another.

JSON and forms are read as far as the names at their top; what else they hold stays as it came.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FORM_PARTS = 200
MAX_PART_HEAD_BYTES = 8192
MAX_BOUNDARY = 70
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


class BadBodyError(Exception):
    """A body that names no model, or cannot be read; the message is for the client."""


@dataclass(frozen=True, slots=True)
class Member:
    """One name of the outermost object or form, and where its value stands."""

    name: str
    value: Any
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A body that was read; offsets are of `text`."""

    raw: bytes
    text: str
    """Of a form one character a byte."""
    members: tuple[Member, ...]
    boundary: str = ""
    """Of a form; empty for JSON."""

    @property
    def model(self) -> str:
        value = self._last("model")
        if not isinstance(value, str) or not value:
            raise BadBodyError("the request names no model: `model` has to be a text")
        return value

    @property
    def is_stream(self) -> bool:
        value = self._last("stream")
        return value in {"true", "True", "1"} if self.boundary else value is True

    def for_server(self, served: str, defaults: Mapping[str, object]) -> bytes:
        """Return the body with the server's own name of the model, and what it leaves out."""
        named = {it.name for it in self.members}
        added = {name: value for name, value in defaults.items() if name not in named}
        is_same = all(it.value == served for it in self.members if it.name == "model")
        if is_same and not added:
            return self.raw
        text = self.text
        for member in reversed(self.members):
            if member.name == "model":
                text = text[: member.start] + self._written(served) + text[member.end :]
        if self.boundary:
            parts = (self._part(name, value) for name, value in added.items())
            return ("".join(parts) + text).encode("latin-1")
        brace = text.index("{") + 1
        pairs = (f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in added.items())
        return (text[:brace] + "".join(pairs) + text[brace:]).encode()

    def _last(self, name: str) -> Any:  # noqa: ANN401 - any JSON
        return next((it.value for it in reversed(self.members) if it.name == name), None)

    def _written(self, value: str) -> str:
        return value.encode().decode("latin-1") if self.boundary else json.dumps(value)

    def _part(self, name: str, value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        head = f'--{self.boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        return (head + text + "\r\n").encode().decode("latin-1")


def read_body(raw: bytes, content_type: str) -> RequestBody:
    """Return what a request's body names; BadBodyError where it cannot be read."""
    header = Message()
    header["content-type"] = re.sub(r"[\r\n]", " ", content_type)
    try:
        if header.get_content_type() == "multipart/form-data":
            boundary, text = str(header.get_param("boundary", "")), raw.decode("latin-1")
            return RequestBody(raw, text, tuple(_form_members(text, boundary)), boundary)
        text = raw.decode()
        return RequestBody(raw, text, tuple(_json_members(text)))
    except (ValueError, RecursionError) as error:
        raise BadBodyError(f"the request's body cannot be read: {error}") from error


def _json_members(text: str) -> list[Member]:
    found: list[Member] = []
    at = _expect(text, 0, "{")
    if text.startswith("}", at):
        return found
    while True:
        if not text.startswith('"', at):
            raise ValueError(f"a name was expected at character {at}")
        name, at = _DECODER.raw_decode(text, at)
        start = _expect(text, at, ":")
        value, end = _DECODER.raw_decode(text, start)
        # A body waits for long, and its values may take many times the bytes of its text.
        kept = value if name in {"model", "stream"} else None
        found.append(Member(name, kept, start, end))
        at = _skip(text, end)
        if text.startswith("}", at):
            if _skip(text, at + 1) != len(text):
                raise ValueError("something stands behind the object")
            return found
        at = _expect(text, at, ",")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, mark: str) -> int:
    at = _skip(text, at)
    if not text.startswith(mark, at):
        raise ValueError(f"{mark!r} was expected at character {at}")
    return _skip(text, at + 1)


def _form_members(text: str, boundary: str) -> list[Member]:
    """Return the fields of a form that are no files."""
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise ValueError("the form has no boundary")
    found: list[Member] = []
    mark = f"--{boundary}"
    at = 0 if text.startswith(mark) else text.find(f"\r\n{mark}") + 2
    for _ in range(MAX_FORM_PARTS):
        at += len(mark)
        if at < len(mark) + 2 and not text.startswith(mark):
            break
        if text.startswith("--", at):
            return found
        head_end = text.find("\r\n\r\n", at, at + MAX_PART_HEAD_BYTES)
        end = text.find(f"\r\n{mark}", max(head_end, at))
        if head_end < 0 or end < 0:
            break
        head = message_from_bytes(text[at:head_end].strip().encode("latin-1"))
        name = head.get_param("name", None, "content-disposition")
        is_file = head.get_param("filename", None, "content-disposition") is not None
        if isinstance(name, str) and not is_file:
            value = text[head_end + 4 : end].encode("latin-1").decode("utf-8", "replace")
            found.append(Member(name, value, head_end + 4, end))
        at = end + 2
    raise ValueError("the form is not whole, or has too many parts")
