"""Prompts of a user's own: a JSON object a line, read strictly."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.load.plan import Texts
from sparkdeploy.bench.suites import Prompt, Route
from sparkdeploy.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEFAULT_MAX_TOKENS = 512
"""Of a line that says none: without a limit one runaway answer would be the whole measurement."""
_KEYS = ("messages", "prompt", "max_tokens")
_FORM = 'such as {"prompt": "Hello", "max_tokens": 64} or {"messages": [...]}'


class _LineError(Exception):
    pass


def read_prompts(path: Path, route: Route) -> Texts:
    """Return a file's prompts in their order; UsageError names the first line that is wrong.

    Empty lines are passed over.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts: {path} cannot be read: {_reason(error)}") from error
    prompts = tuple(_prompts(text, path, route))
    if not prompts:
        raise UsageError(f"--prompts: {path} holds no prompt", hint=f"one a line, {_FORM}")
    # The name of a file is nothing that a record of it needs: figures go by what is in it.
    return Texts(f"own-{hashlib.sha256(text.encode()).hexdigest()[:8]}", prompts)


def _prompts(text: str, path: Path, route: Route) -> Iterator[Prompt]:
    # Only a line feed ends a line of JSON: splitlines would also cut at U+2028 in a text.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield _prompt(line, f"line {number}", route)
            except _LineError as error:
                raise UsageError(f"--prompts: {path}, line {number}: {error}", hint=_FORM) from None


def _prompt(line: str, name: str, route: Route) -> Prompt:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _LineError(f"no JSON: {error}") from error
    if not isinstance(content, dict):
        raise _LineError("no JSON object")
    for key in content:
        if key not in _KEYS:
            raise _LineError(f"{key!r} is not known; keys are {', '.join(_KEYS)}")
    if ("messages" in content) == ("prompt" in content):
        raise _LineError("either messages or prompt must be there, and not both")
    if "messages" in content:
        if route is Route.COMPLETIONS:
            raise _LineError("messages go by --route chat; /v1/completions takes a prompt")
        messages = _messages(content["messages"])
    else:
        messages = ({"role": "user", "content": _words(content["prompt"])},)
    return Prompt(name, messages, _max_tokens(content.get("max_tokens", DEFAULT_MAX_TOKENS)))


def _messages(content: Any) -> tuple[dict[str, Any], ...]:  # noqa: ANN401 - JSON
    if not isinstance(content, list) or not content:
        raise _LineError("messages is no list of messages")
    for message in content:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _LineError("a message is an object with a role")
        if "content" not in message and "tool_calls" not in message:
            raise _LineError(f"a message of role {message['role']} has no content")
    return tuple(content)


def _words(content: Any) -> str:  # noqa: ANN401 - JSON
    if not isinstance(content, str) or not content:
        raise _LineError("prompt is no text")
    return content


def _max_tokens(content: Any) -> int:  # noqa: ANN401 - JSON
    # True is an int to Python.
    if type(content) is not int or content < 1:
        raise _LineError(f"max_tokens is {json.dumps(content)}, no count of tokens")
    return content


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "it is no UTF-8"
