"""Conversations: what each turn holds, that turns wait for one another, what a cache is told."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.bench.load.measure import LoadMeasurement
from sparkdeploy.bench.load.plan import Arrivals, Law, LoadPlan, conversations
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.measure import MeasuredServer
from sparkdeploy.bench.suites import UsageSupport
from sparkdeploy.bench.tables import load_lines
from sparkdeploy.bench.watch import BenchWatch
from tests.fakes.scripted_server import DONE, Action, Arrive, Refuse, Write, arriving, event
from tests.unit.bench.loads import suite_of
from tests.unit.plain import plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sparkdeploy.bench.record import SuiteResult
    from tests.fakes.vllm_server import FakeEngine
    from tests.unit.program import Done


def test_each_turn_begins_with_the_whole_one_before() -> None:
    ((*chain,),) = conversations(9).chains(1, seed=1)

    for earlier, later in pairwise(chain):
        before, after = earlier.messages, later.messages
        assert after[: len(before)] == before
        asked, told = after[len(before) :]
        (call,) = asked["tool_calls"]
        assert told["tool_call_id"] == call["id"]
        called = call["function"]["name"]
        (tool,) = [item for item in later.tools if item["function"]["name"] == called]
        arguments = json.loads(call["function"]["arguments"])
        parameters = tool["function"]["parameters"]
        assert set(parameters["required"]) <= set(arguments) <= set(parameters["properties"])


def answer(stream: int, came_s: float, prompt: int, cached: int) -> list[Action | Arrive]:
    """Answer two tokens, a half and a whole second after the request came."""
    end = json.loads(event(usage=(prompt, 2), choices=False)[6:])
    end["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    words = event(ids=[2], text="w", usage=(prompt, 2))
    last = b"data: " + json.dumps(end).encode() + b"\n\n" + DONE
    return [
        Arrive(came_s, stream),
        Write(came_s + 0.5, stream, event(ids=[1], text="w", usage=(prompt, 1))),
        Write(came_s + 1.0, stream, words + last),
    ]


def take(actions: Sequence[Action | Arrive]) -> SuiteResult:
    coming = Arrivals(Law.CONSTANT, requests=2, ramp_s=0.0)
    plan = LoadPlan(coming, conversations(2), (0.25,))
    with arriving(actions, tried_first=2) as (_, streams), BenchWatch(None, None) as watch:
        server = MeasuredServer(streams, "qwen", UsageSupport.FULL)
        return LoadMeasurement(plan, server, watch).run(lambda _text: None)


# One conversation that counts nowhere; the load begins at 2.
FIRST = [*answer(0, 0.0, 10, 0), *answer(1, 1.0, 20, 0)]


@pytest.mark.outside
def test_turns_wait_for_one_another_and_conversations_do_not() -> None:
    result = take(
        [
            *FIRST,
            *answer(2, 6.0, 100, 16),
            *answer(3, 7.0, 300, 96),
            *answer(4, 10.0, 100, 32),
            *answer(5, 11.0, 300, 128),
        ]
    )

    (cell,) = result.cells
    assert result.asking is Asking.CONVERSATIONS
    assert [(item.stream, item.prompt) for item in cell.samples] == [
        *[(0, "turn 1"), (0, "turn 2")],
        *[(1, "turn 1"), (1, "turn 2")],
    ]
    assert [item.sent_s for item in cell.samples] == pytest.approx([4, 5, 8, 9])
    assert all(item.late_s == 0 for item in cell.samples)
    load = cell.load
    assert load is not None
    assert [(item.turn, item.requests, item.failures) for item in load.turns] == [
        (1, 2, 0),
        (2, 2, 0),
    ]
    assert [item.prompt_tokens for item in load.turns] == [100, 300]
    assert [item.cached_tokens for item in load.turns] == [24, 112]
    assert load.unsent == 0
    lines = "\n".join(plain_lines(load_lines(result)))
    assert "of them cached     24    112" in lines


@pytest.mark.outside
def test_what_follows_a_failed_turn_is_not_sent_and_told() -> None:
    result = take(
        [
            *FIRST,
            Arrive(6.0, 2),
            Refuse(6.5, 2, 503, "busy"),
            *answer(3, 10.0, 100, 0),
            *answer(4, 11.0, 300, 0),
        ]
    )

    load = result.cells[0].load
    assert load is not None
    assert (load.requests, load.failures, load.unsent) == (3, 1, 1)
    assert [(item.requests, item.failures) for item in load.turns] == [(2, 1), (1, 0)]
    assert "not sent, because one before had failed: 1" in "\n".join(
        plain_lines(load_lines(result))
    )


@pytest.mark.outside
def test_conversations_are_asked_with_their_tools(
    bench: Callable[..., Done],
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    done = bench(
        *("load", "--url", engine.url, "--rate", "20", "--requests", "4", "--ramp", "0"),
        *("--turns", "3"),
    )

    assert done.returncode == 0, done.stderr
    assert "suite load: conversations in an open loop" in done.stdout
    assert "by turn, at 20 conversations a second" in done.stdout
    asked = [body for body in engine.asked if "tools" in body]
    # One more than four, which counts nowhere.
    assert len(asked) == 15
    suite = suite_of(tmp_path)
    assert len(suite["cells"][0]["samples"]) == 12
    means = [item["prompt_tokens"] for item in suite["cells"][0]["load"]["turns"]]
    assert means == sorted(means)
