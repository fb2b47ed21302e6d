"""A stream of events, wherever its chunks end and whatever else comes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.errors import UnhealthyError
from sparkdeploy.server import client
from sparkdeploy.server.streaming import AnswerSoFar, answer_pieces, error_message


def event(content: Any, end: str = "\n\n") -> bytes:
    return f"data: {json.dumps(content)}{end}".encode()


DONE = b"data: [DONE]\n\n"


def delta(**fields: object) -> dict[str, Any]:
    return {"choices": [{"delta": fields}]}


WHOLE = b"".join(
    (
        b": a comment\n\n",
        event(delta(role="assistant", content="")),
        event(delta(reasoning="Hm, ")),
        event(delta(reasoning_content="well.")),
        event(delta(content="Zwölf ")),
        event(delta(content="模型"), end="\r\n\r\n"),
        event({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
        event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}}),
        DONE,
        b"data: not looked at\n\n",
    )
)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=40))
def test_an_answer_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]
    chunks = [WHOLE[start:end] for start, end in itertools.pairwise(places)]
    times = iter(range(100))
    answer = AnswerSoFar(clock=lambda: float(next(times)))
    for piece in answer_pieces(chunks):
        answer.take(piece)
    assert (answer.text, answer.thought) == ("Zwölf 模型", "Hm, well.")
    assert answer.finish_reason == "stop"
    assert (answer.prompt_tokens, answer.completion_tokens) == (7, 4)
    # Asked at 0, the pieces came at 1, 2, 3 and 4.
    assert answer.first_token_s == 1
    assert answer.tokens_per_s == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>hello</html>", "did not stream an answer"),
        (b"", "did not stream an answer"),
        (
            event({"error": {"message": "EngineCore died"}}),
            "ended its answer early: EngineCore died",
        ),
        (event(delta(content="Par")), "ended before the answer did"),
        (b"data: {half\n\n", "not JSON"),
        (b"data: " + b"x" * (9 << 20), "did not answer with lines"),
    ],
)
def test_what_is_no_answer_is_said(body: bytes, says: str) -> None:
    with pytest.raises(UnhealthyError, match=says):
        list(answer_pieces([body]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"error": {"message": " too long "}}', "too long"),
        ('{"message": "old style"}', "old style"),
        ('{"error": "plain"}', "plain"),
        ('{"detail": "Not Found"}', "Not Found"),
        ("[1]", "[1]"),
        (" nginx ", "nginx"),
    ],
)
def test_the_servers_own_words(text: str, words: str) -> None:
    assert error_message(text) == words


def test_an_answer_whose_connection_breaks_is_not_taken_for_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Iterator[bytes]:
        yield WHOLE[:40]
        raise requests.exceptions.ChunkedEncodingError("IncompleteRead")

    monkeypatch.setattr(client, "chunks", broken)
    response: Any = SimpleNamespace(headers={}, url="http://127.0.0.1:8000/v1/completions")
    with pytest.raises(UnhealthyError, match="completions ended its answer early"):
        list(client._chunks(response))
