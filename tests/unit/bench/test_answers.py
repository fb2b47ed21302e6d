"""Reading a stream: whatever the cuts, the tokens are the same; chunks are never tokens."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.answers import Arrival, Exchange, read_answer
from sparkdeploy.bench.record import Counting, Failure, FailureKind
from tests.fakes.scripted_server import DONE, event

pytestmark = pytest.mark.outside

STREAM = (
    event(text="", usage=(9, 0))
    + event(ids=[1, 2, 3], text="Paris ä €", usage=(9, 3))
    + event(ids=[4], text="", usage=(9, 4))
    + event(ids=[5, 6], text=" and", usage=(9, 6), finish="stop")
    + event(usage=(9, 6), choices=False)
    + DONE
)


def exchange(*pieces: bytes, failure: Failure | None = None) -> Exchange:
    arrivals = tuple(Arrival(float(index), data) for index, data in enumerate(pieces))
    return Exchange(0.0, float(len(pieces)), arrivals, failure)


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_the_cuts_do_not_change_what_is_counted(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(edges)]

    answer = read_answer(exchange(*pieces))

    assert (answer.prompt_tokens, answer.completion_tokens) == (9, 6)
    assert answer.counting is Counting.TOKEN_IDS
    assert sum(item.tokens for item in answer.tokens) == 6


def test_an_event_came_when_its_last_byte_came() -> None:
    first = event(ids=[1], text="a")
    answer = read_answer(exchange(first[:-1], first[-1:], event(ids=[2], text="b"), DONE))

    assert [(item.at_s, item.tokens) for item in answer.tokens] == [(1.0, 1), (2.0, 1)]


def test_other_line_ends_and_comments_are_read() -> None:
    stream = b": hello\r\n\r\n" + STREAM.replace(b"\n", b"\r\n")

    assert read_answer(exchange(stream)).completion_tokens == 6


def test_usage_in_every_chunk_counts_where_there_are_no_ids() -> None:
    answer = read_answer(
        exchange(
            event(text="", usage=(9, 0)),
            event(text="a b", usage=(9, 2)),
            event(text="c", usage=(9, 5), finish="length"),
            event(usage=(9, 5), choices=False) + DONE,
        )
    )

    assert answer.counting is Counting.USAGE_EACH
    assert [item.tokens for item in answer.tokens] == [2, 3]
    assert answer.finish_reason == "length"


def test_with_usage_at_the_end_alone_chunks_share_the_tokens() -> None:
    answer = read_answer(
        exchange(
            event(text=""),
            event(text="a"),
            event(text="b"),
            event(usage=(9, 5), choices=False) + DONE,
        )
    )

    assert answer.counting is Counting.USAGE
    assert [item.tokens for item in answer.tokens] == [2.5, 2.5]
    assert answer.completion_tokens == 5


def test_token_ids_that_contradict_usage_are_not_believed() -> None:
    answer = read_answer(
        exchange(event(ids=[1], text="a"), event(usage=(9, 4), choices=False) + DONE)
    )

    assert answer.counting is Counting.USAGE
    assert answer.completion_tokens == 4


def test_chunks_without_any_count_are_not_counted() -> None:
    answer = read_answer(exchange(event(text="a"), event(text="b"), DONE))

    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.UNCOUNTED


def test_reasoning_and_tool_calls_are_tokens_too() -> None:
    deltas: list[dict[str, object]] = [{"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}]
    events = [
        b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"
        for delta in deltas
    ]

    answer = read_answer(exchange(*events, event(usage=(9, 4), choices=False) + DONE))

    assert [item.tokens for item in answer.tokens] == [2, 2]


def test_the_connection_may_break_after_everything_was_said() -> None:
    broken = Failure(FailureKind.BROKEN_OFF, "reset")

    assert read_answer(exchange(STREAM, failure=broken)).completion_tokens == 6


def test_a_stream_without_done_that_says_why_it_stopped_is_whole() -> None:
    stream = STREAM.removesuffix(DONE)

    assert read_answer(exchange(stream)).completion_tokens == 6


def test_an_answer_of_no_token_is_a_failure() -> None:
    answer = read_answer(exchange(event(usage=(9, 0), choices=False) + DONE))

    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.MALFORMED


@pytest.mark.parametrize(
    "data",
    [
        "[1]",
        "7",
        '{"choices": 7}',
        '{"choices": [7]}',
        '{"usage": 7}',
        '{"usage": {"completion_tokens": "x"}}',
    ],
)
def test_json_of_another_shape_is_malformed(data: str) -> None:
    answer = read_answer(exchange(f"data: {data}\n\n".encode() + DONE))

    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.MALFORMED


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    answer = read_answer(exchange(noise))

    assert answer.failure is not None or answer.completion_tokens > 0


def test_text_of_completions_is_counted_without_token_ids() -> None:
    texts = [
        {"choices": [{"index": 0, "text": "a b", "finish_reason": None}]},
        {"choices": [{"index": 0, "text": " c", "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6}},
    ]
    events = [b"data: " + json.dumps(item).encode() + b"\n\n" for item in texts]

    answer = read_answer(exchange(*events, DONE))

    assert (answer.prompt_tokens, answer.completion_tokens) == (4, 6)
    assert answer.counting is Counting.USAGE
    assert [item.at_s for item in answer.tokens] == [0.0, 1.0]
