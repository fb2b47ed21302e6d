"""What a streamed answer says, from its bytes and their moments; read when all is measured."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from sparkdeploy.bench.record import Counting, Failure, FailureKind
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.server.streaming import DONE, error_message, event_data

_SHOWN_CHARACTERS = 200
_TEXT_FIELDS = ("content", "reasoning", "reasoning_content", "tool_calls")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Bytes that were read from the socket at one moment."""

    at_s: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    sent_s: float
    ended_s: float
    arrivals: tuple[Arrival, ...] = ()
    failure: Failure | None = None
    """What the connection did wrong; what the bytes say is read later."""
    connect_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenArrival:
    """Tokens that came together. Their number is a fraction where only the total is known."""

    at_s: float
    tokens: float


@dataclass(frozen=True, slots=True)
class CountedAnswer:
    """A streamed answer, counted; with `failure` nothing else of it may be used."""

    tokens: tuple[TokenArrival, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    counting: Counting | None = None
    finish_reason: str = ""
    failure: Failure | None = None


@dataclass(slots=True)
class _Event:
    at_s: float
    has_text: bool
    id_count: int | None
    usage_total: int | None
    """`completion_tokens` up to and with this event, where the server says it each time."""


@dataclass(slots=True)
class _Reading:
    events: list[_Event] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    usage_total: int | None = None
    finish_reason: str = ""
    has_events: bool = False


class _UnusableError(Exception):
    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message[:_SHOWN_CHARACTERS])


def read_answer(exchange: Exchange) -> CountedAnswer:
    reading = _Reading()
    try:
        for at_s, data in event_data((part.at_s, part.data) for part in exchange.arrivals):
            if data == DONE:
                break
            _read_event(reading, at_s, data.decode(errors="replace"))
        else:
            _check_end(reading, exchange)
        tokens, counting = _count(reading)
    except UnhealthyError as error:
        return CountedAnswer(failure=Failure(FailureKind.MALFORMED, error.message))
    except _UnusableError as error:
        return CountedAnswer(failure=error.failure)
    return CountedAnswer(
        tokens=tokens,
        prompt_tokens=reading.prompt_tokens,
        cached_tokens=reading.cached_tokens,
        completion_tokens=round(sum(item.tokens for item in tokens)),
        counting=counting,
        finish_reason=reading.finish_reason,
    )


def _read_event(reading: _Reading, at_s: float, text: str) -> None:
    reading.has_events = True
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _UnusableError(FailureKind.MALFORMED, f"{error}: {text}") from error
    if not isinstance(content, dict):
        raise _UnusableError(FailureKind.MALFORMED, f"not an object: {text}")
    if content.get("error"):
        raise _UnusableError(FailureKind.SERVER_ERROR, error_message(text))
    try:
        usage_total = _read_usage(reading, content.get("usage"))
        _read_choices(reading, at_s, content.get("choices") or (), usage_total)
    except (TypeError, ValueError, AttributeError) as error:
        raise _UnusableError(FailureKind.MALFORMED, f"unexpected shape: {text}") from error


def _read_usage(reading: _Reading, usage: Any) -> int | None:  # noqa: ANN401 - JSON
    if not usage:
        return None
    reading.prompt_tokens = int(usage.get("prompt_tokens") or reading.prompt_tokens)
    details = usage.get("prompt_tokens_details") or {}
    if details.get("cached_tokens") is not None:
        reading.cached_tokens = int(details["cached_tokens"])
    if usage.get("completion_tokens") is None:
        return None
    reading.usage_total = int(usage["completion_tokens"])
    return reading.usage_total


def _read_choices(
    reading: _Reading, at_s: float, choices: Sequence[Any], usage_total: int | None
) -> None:
    for choice in choices:
        delta = choice.get("delta") or {}
        has_text = bool(choice.get("text")) or any(delta.get(name) for name in _TEXT_FIELDS)
        ids = choice.get("token_ids")
        id_count = None if ids is None else len(ids)
        reading.finish_reason = choice.get("finish_reason") or reading.finish_reason
        reading.events.append(_Event(at_s, has_text, id_count, usage_total))


def _check_end(reading: _Reading, exchange: Exchange) -> None:
    if exchange.failure is not None:
        raise _UnusableError(exchange.failure.kind, exchange.failure.message)
    # Some servers close without [DONE]; one that told why it stopped has said everything.
    if reading.finish_reason:
        return
    if not reading.has_events:
        _refuse_what_is_no_stream(b"".join(part.data for part in exchange.arrivals))
    raise _UnusableError(FailureKind.BROKEN_OFF, "the stream ended without [DONE]")


def _refuse_what_is_no_stream(body: bytes) -> None:
    words = plain_words(body)
    start = body.lstrip()[:1]
    if start == b"{" and not words.startswith("{"):
        raise _UnusableError(FailureKind.SERVER_ERROR, words)
    if start in {b"{", b"<"}:
        kind = "one JSON object" if start == b"{" else "a page"
        raise _UnusableError(FailureKind.MALFORMED, f"{kind} instead of a stream: {words}")


def plain_words(body: bytes) -> str:
    """Return what an answer that is no stream says, an error's message alone."""
    return " ".join(error_message(body.decode(errors="replace")).split())[:_SHOWN_CHARACTERS]


def _count(reading: _Reading) -> tuple[tuple[TokenArrival, ...], Counting]:
    for count_events, counting in (
        (_by_token_ids, Counting.TOKEN_IDS),
        (_by_usage_each, Counting.USAGE_EACH),
        (_by_usage, Counting.USAGE),
    ):
        counted = count_events(reading)
        if counted is not None:
            return _together(counted), counting
    if reading.usage_total == 0:
        raise _UnusableError(FailureKind.MALFORMED, "the answer holds no token")
    raise _UnusableError(FailureKind.UNCOUNTED, "neither usage nor token ids came with the answer")


def _by_token_ids(reading: _Reading) -> list[TokenArrival] | None:
    """Every event with text must have ids, and their sum must be what `usage` says."""
    if any(event.has_text and event.id_count is None for event in reading.events):
        return None
    counted = [TokenArrival(event.at_s, event.id_count or 0) for event in reading.events]
    total = sum(item.tokens for item in counted)
    return counted if total and total == (reading.usage_total or total) else None


def _by_usage_each(reading: _Reading) -> list[TokenArrival] | None:
    events = reading.events
    if not events or not reading.usage_total or events[-1].usage_total != reading.usage_total:
        return None
    if any(event.has_text and event.usage_total is None for event in events):
        return None
    known = [(event.at_s, event.usage_total) for event in events if event.usage_total is not None]
    steps = pairwise([(0.0, 0), *known])
    counted = [TokenArrival(at_s, total - before) for (_, before), (at_s, total) in steps]
    return counted if all(item.tokens >= 0 for item in counted) else None


def _by_usage(reading: _Reading) -> list[TokenArrival] | None:
    """Only the total is known: every event with text is taken to hold as many tokens."""
    moments = [event.at_s for event in reading.events if event.has_text]
    if not reading.usage_total or not moments:
        return None
    each = reading.usage_total / len(moments)
    return [TokenArrival(at_s, each) for at_s in moments]


def _together(counted: Iterable[TokenArrival]) -> tuple[TokenArrival, ...]:
    some = (item for item in counted if item.tokens)
    return tuple(
        TokenArrival(at_s, sum(item.tokens for item in moment))
        for at_s, moment in groupby(some, key=lambda item: item.at_s)
    )
