"""The client against a scripted server: every figure is the script's own truth."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

import pytest

from sparkdeploy.bench import streams
from sparkdeploy.bench.answers import read_answer
from sparkdeploy.bench.figures import Measured, measure, round_result
from sparkdeploy.bench.record import Counting, FailureKind
from sparkdeploy.bench.streams import Streams
from tests.fakes.scripted_server import DONE, Action, Drop, End, Refuse, Write, event, scripted

pytestmark = pytest.mark.outside

MALFORMED = b'data: {"choices": [\n\n'
SERVER_ERROR = b'data: {"error": {"message": "the engine died", "code": 500}}\n\n'


def take(actions: Sequence[Action], streams: int) -> list[Measured]:
    """Send one request a stream and measure what the script answers."""
    with scripted(actions) as (server, clock), Streams(server.url, clock=clock) as client:
        exchanges = client.round([{"stream": index} for index in range(streams)])
    return [
        measure(exchange, prompt="x", number=1, stream=index, began_s=0.0)
        for index, exchange in enumerate(exchanges)
    ]


def answer(stream: int, moments: Sequence[tuple[float, int]]) -> list[Action]:
    """Stream this many tokens at each moment, as vLLM does, and end well."""
    actions: list[Action] = []
    total = 0
    for at_s, tokens in moments:
        total += tokens
        data = event(ids=range(tokens), text="w " * tokens, usage=(7, total))
        actions.append(Write(at_s, stream, data))
    last_s = moments[-1][0]
    end = event(usage=(7, total), choices=False) + DONE
    return [*actions, Write(last_s + 0.001, stream, end), End(last_s + 0.002, stream)]


def test_chunks_of_several_tokens_and_a_stall_are_timed_exactly() -> None:
    moments = [(0.5, 3), (0.6, 2), (0.7, 3), (2.7, 1), (2.75, 3)]
    (measured,) = take(answer(0, moments), 1)
    sample = measured.sample
    assert sample.completion_tokens == 12
    assert sample.prompt_tokens == 7
    assert sample.counting is Counting.TOKEN_IDS
    assert sample.ttft_s == pytest.approx(0.5)
    assert sample.duration_s == pytest.approx(2.75)
    assert sample.end_to_end_tok_s == pytest.approx(12 / 2.75)
    assert sample.decode_tok_s == pytest.approx(9 / 2.25)
    assert sample.tpot_s == pytest.approx(2.25 / 9)
    assert sample.gap_s is not None
    assert sample.gap_s.count == 4
    assert sample.gap_s.p50 == pytest.approx(0.1)
    assert sample.gap_s.max == pytest.approx(2.0)


def test_every_quantile_of_many_streams_is_the_truth() -> None:
    dice = random.Random(8)
    truth = {}
    actions: list[Action] = []
    for stream in range(16):
        at_s = dice.uniform(0.1, 0.9)
        moments = []
        for _ in range(40):
            moments.append((at_s, dice.randint(1, 3)))
            at_s += dice.expovariate(20) + (1.5 if dice.random() < 0.02 else 0)
        truth[stream] = moments
        actions += answer(stream, moments)
    measured = take(actions, 16)
    found = round_result(1, measured).latency
    firsts = [moments[0][0] for moments in truth.values()]
    gaps = [
        later[0] - earlier[0] for moments in truth.values() for earlier, later in pairwise(moments)
    ]
    tpots = [
        (moments[-1][0] - moments[0][0]) / sum(tokens for _, tokens in moments[1:])
        for moments in truth.values()
    ]
    for got, values in ((found.ttft_s, firsts), (found.gap_s, gaps), (found.tpot_s, tpots)):
        assert got is not None
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        assert got.count == len(values)
        assert (got.p50, got.p95, got.p99) == pytest.approx((cuts[49], cuts[94], cuts[98]))
        assert got.max == pytest.approx(max(values))


def test_no_answer_is_parsed_while_others_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took milliseconds, by which the last arrivals of all others were stamped late."""

    def fail(pieces: object) -> NoReturn:
        raise AssertionError(pieces)

    monkeypatch.setattr(streams, "has_ended", fail)
    actions = [it for stream in range(8) for it in answer(stream, [(0.1, 1), (0.11, 1)])]
    for measured in take(actions, 8):
        assert measured.sample.duration_s == pytest.approx(0.11)


def test_failed_requests_are_counted_and_never_averaged_in() -> None:
    actions = [
        *answer(0, [(1.0, 1), (1.5, 10)]),
        Write(0.1, 1, event(ids=[1], text="w", usage=(7, 1))),
        Write(0.2, 1, SERVER_ERROR + DONE),
        End(0.3, 1),
        Write(0.15, 2, event(ids=[1, 2], text="w", usage=(7, 2))),
        Drop(0.4, 2),
        Write(0.16, 3, MALFORMED),
        End(5.0, 3),
        Refuse(0.17, 4, 400, "too long"),
        Write(0.18, 5, event(text="w")),
        Write(0.19, 5, event(text="w", finish="stop") + DONE),
        End(0.21, 5),
        Write(0.22, 6, event(ids=[1], text="w", usage=(7, 1))),
        End(0.23, 6),
    ]
    measured = take(actions, 7)
    failures = [item.sample.failure for item in measured]
    assert [failure.kind if failure else None for failure in failures] == [
        None,
        FailureKind.SERVER_ERROR,
        FailureKind.BROKEN_OFF,
        FailureKind.MALFORMED,
        FailureKind.REFUSED,
        FailureKind.UNCOUNTED,
        FailureKind.BROKEN_OFF,
    ]
    assert failures[1] is not None
    assert failures[1].message == "the engine died"
    assert failures[4] is not None
    assert failures[4].message == "400: too long"
    together = round_result(1, measured)
    alone = round_result(1, measured[:1])
    assert (together.requests, together.failures) == (7, 6)
    assert together.end_to_end_tok_s == alone.end_to_end_tok_s == pytest.approx(11 / 1.5)
    assert together.decode_tok_s == pytest.approx(20)
    assert together.latency == alone.latency


def test_a_server_that_goes_silent_is_given_up() -> None:
    actions: list[Action] = [Write(0.1, 0, event(ids=[1], text="w", usage=(7, 1)))]
    with (
        scripted(actions) as (server, clock),
        Streams(server.url, silence_s=0.2, clock=clock) as client,
    ):
        (exchange,) = client.round([{"stream": 0}])
    found = read_answer(exchange).failure
    assert found is not None
    assert found.kind is FailureKind.TIMEOUT


def test_the_key_goes_into_the_header_and_the_body_is_what_was_given() -> None:
    actions = answer(0, [(0.1, 1), (0.2, 1)])
    with scripted(actions) as (server, clock), Streams(server.url, "secret", clock=clock) as client:
        client.round([{"stream": 0, "model": "qwen"}])
    assert server.bodies == {0: {"stream": 0, "model": "qwen"}}
    assert b"authorization: bearer secret" in server.heads[0].lower()
    assert b"connection: close" in server.heads[0].lower()
