"""A streamed chat answer: its pieces of text and reasoning, tokens and times."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from sparkdeploy.errors import UnhealthyError

T = TypeVar("T")
DATA = b"data:"
DONE = b"[DONE]"
LOGS_HINT = "`sparkdeploy status` and `sparkdeploy logs` show what the server does"
_MAX_LINE_BYTES = 8 << 20
"""No event of an answer is so long; another program's answer may be."""


@dataclass(slots=True)
class AnswerPiece:
    text: str = ""
    thought: str = ""
    finish_reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(slots=True)
class AnswerSoFar(AnswerPiece):
    clock: Callable[[], float] = time.perf_counter
    asked_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None

    def __post_init__(self) -> None:
        self.asked_s = self.clock()

    def take(self, piece: AnswerPiece) -> None:
        if piece.text or piece.thought:
            self.last_s = self.clock()
            self.first_s = self.last_s if self.first_s is None else self.first_s
        self.text += piece.text
        self.thought += piece.thought
        self.finish_reason = piece.finish_reason or self.finish_reason
        if piece.prompt_tokens is not None:
            self.prompt_tokens = piece.prompt_tokens
        if piece.completion_tokens is not None:
            self.completion_tokens = piece.completion_tokens

    @property
    def first_token_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.asked_s

    @property
    def tokens_per_s(self) -> float | None:
        """Return the rate after the first token; None for fewer than two, or no count."""
        if self.first_s is None or self.last_s is None or (self.completion_tokens or 0) < 2:
            return None
        span_s = self.last_s - self.first_s
        return ((self.completion_tokens or 0) - 1) / span_s if span_s > 0 else None


def answer_pieces(chunks: Iterable[bytes]) -> Iterator[AnswerPiece]:
    """Read a stream of events; UnhealthyError for an error, an end too early, or for no stream."""
    is_stream = has_finished = False
    for _, data in event_data((0.0, chunk) for chunk in chunks):
        is_stream = True
        if data == DONE:
            return
        piece = _piece(data)
        has_finished = has_finished or bool(piece.finish_reason)
        yield piece
    if not is_stream:
        raise UnhealthyError(
            "the server did not stream an answer",
            hint="is this the address of an OpenAI-compatible server?",
        )
    if not has_finished:
        raise UnhealthyError("the connection ended before the answer did", hint=LOGS_HINT)


def event_data(chunks: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield when each event's line was complete, and its data; an event of OpenAI's is one line."""
    rest, at_s = b"", 0.0
    for at_s, chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from ((at_s, line[len(DATA) :].strip()) for line in lines if line.startswith(DATA))
        if len(rest) > _MAX_LINE_BYTES:
            raise UnhealthyError("the server did not answer with lines of an event stream")
    if rest.startswith(DATA):
        yield at_s, rest[len(DATA) :].strip()


def error_message(text: str) -> str:
    try:
        content = json.loads(text)
    except ValueError:
        return text.strip()
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return message.strip() if isinstance(message, str) else text.strip()


def _piece(data: bytes) -> AnswerPiece:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise UnhealthyError(
            "the server sent an event that is not JSON", detail=data[:500].decode(errors="replace")
        ) from error
    if not isinstance(content, dict):
        return AnswerPiece()
    if content.get("error"):
        raise UnhealthyError(
            f"the server ended its answer early: {error_message(json.dumps(content))}",
            hint="`sparkdeploy logs` shows why, `sparkdeploy diagnose` packs it",
        )
    choices = content.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    nothing: dict[str, Any] = {}
    delta, usage = _value(choice, "delta", nothing), _value(content, "usage", nothing)
    return AnswerPiece(
        text=_value(delta, "content", ""),
        thought=_value(delta, "reasoning", "") or _value(delta, "reasoning_content", ""),
        finish_reason=_value(choice, "finish_reason", ""),
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
    )


def _value(mapping: object, key: str, otherwise: T) -> T:
    """Return a value where it is of the kind wanted: any server may answer anything."""
    value = mapping.get(key) if isinstance(mapping, dict) else None
    return value if isinstance(value, type(otherwise)) else otherwise


def _count(mapping: object, key: str) -> int | None:
    count = mapping.get(key) if isinstance(mapping, dict) else None
    return count if isinstance(count, int) else None
