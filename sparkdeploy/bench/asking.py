"""The body of a request, in the dialect a server understands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdeploy.bench.prompts import Prompt

TOKEN_IDS_UP_TO = 8192
"""Prompts longer than this are asked without token ids: vLLM then returns the prompt's ids too,
a megabyte of JSON before the first token at 256K. `usage` in every chunk counts as well."""


class Dialect(Enum):
    """What of the counting a server lets itself be asked for, best first."""

    FULL = "token ids, and usage in every chunk"
    USAGE = "usage at the end"
    PLAIN = "nothing"


class Length(Enum):
    """How an answer ends."""

    NATURAL = "when the model ends it, or at max_tokens"
    EXACT = "at max_tokens"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send."""

    prompt: Prompt
    length: Length = Length.NATURAL
    context_tokens: int | None = None
    words: int | None = None
    """Of the filler, for a prompt that is made to measure."""


def chat_body(ask: Ask, *, model: str, dialect: Dialect) -> dict[str, Any]:
    """Return the JSON of a streamed chat request at temperature 0."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in ask.prompt.messages],
        "max_tokens": ask.prompt.max_tokens,
        "temperature": 0.0,
        "stream": True,
    }
    if dialect is not Dialect.PLAIN:
        body["stream_options"] = {"include_usage": True}
    if dialect is Dialect.FULL:
        body["stream_options"]["continuous_usage_stats"] = True
        if (ask.context_tokens or 0) <= TOKEN_IDS_UP_TO:
            body["return_token_ids"] = True
    if ask.length is Length.EXACT and dialect is Dialect.FULL:
        body["ignore_eos"] = True
        body["min_tokens"] = ask.prompt.max_tokens
    return body
