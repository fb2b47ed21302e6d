"""Counting a stream's tokens, of which chunks are never one each."""

from __future__ import annotations

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


def test_a_stream_without_done_that_says_why_it_stopped_is_whole() -> None:
    stream = STREAM.removesuffix(DONE)
    assert read_answer(exchange(stream)).completion_tokens == 6


@pytest.mark.parametrize(
    "data",
    [
        *("[1]", "7", '{"choices": 7}', '{"choices": [7]}', '{"usage": 7}'),
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
