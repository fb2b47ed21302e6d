"""What is measured in which order, how long prompts become, and what a gate demands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench import suites
from sparkdeploy.bench.figures import mean_of
from sparkdeploy.bench.run import (
    Finished,
    floor_of,
    require_figures,
    require_gate,
    require_gated_suite,
)
from sparkdeploy.bench.suites import (
    SPARE_SHARE,
    SPARE_TOKENS,
    SuiteName,
    TokenEstimator,
    UsageSupport,
    context_prompt,
    conversation,
    filler,
    fixed_suite,
    request_body,
    sweep_suite,
)
from sparkdeploy.errors import BenchError, UsageError
from tests.fakes.bench_runs import loaded_run, origin, sample_run


def test_rounds_go_over_all_prompts_after_a_warm_up() -> None:
    suite = fixed_suite(SuiteName.FIVE, 2)
    assert [(turn.condition.prompt, turn.round) for turn in suite.turns[:6]] == [
        *((item.name, 0) for item in suites.asked("five")),
        ("qa", 1),
    ]
    assert len(suite.turns) == 15


def test_each_turn_of_an_agent_begins_with_the_whole_one_before() -> None:
    for earlier, later in pairwise(conversation("7")):
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


def test_a_sweep_finishes_one_condition_before_the_next() -> None:
    suite = sweep_suite(2, concurrency=(1, 4), context=(1024, 4096))
    assert [
        (turn.condition.concurrency, turn.condition.context_tokens, turn.round)
        for turn in suite.turns
    ] == [
        *((1, 1024, number) for number in range(3)),
        *((4, 1024, number) for number in range(3)),
        *((1, 4096, number) for number in range(3)),
    ]


def test_a_sweep_goes_as_far_as_the_model() -> None:
    suite = sweep_suite(1, max_model_len=5000)
    conditions = {turn.condition for turn in suite.turns}
    assert {condition.context_tokens for condition in conditions} == {1024, 2048, 4096}
    assert suite.notes[0] == "context 8192 left out: the model serves up to 5000 tokens"
    assert max(condition.concurrency for condition in conditions) == 32


@pytest.mark.parametrize(("context", "limit"), [((1024,), 512), ((128,), None)])
def test_a_sweep_without_room_is_refused(context: tuple[int, ...], limit: int | None) -> None:
    with pytest.raises(UsageError, match="no context of"):
        sweep_suite(1, context=context, max_model_len=limit)


def test_what_is_left_counts_what_is_read_and_what_is_written() -> None:
    suite = sweep_suite(1, concurrency=(1,), context=(1024, 2048))
    short, long = 128 + 1024 / 20, 128 + 2048 / 20
    assert suite.left_share(1) == pytest.approx(long / short)
    assert suite.left_share(3) == 0


@given(st.integers(2, 400), st.integers(0, 2**64))
def test_the_filler_has_the_words_asked_for(words: int, seed: int) -> None:
    assert len(filler(words, seed=seed).split()) == words


@given(st.integers(5, 60), st.floats(1.0, 4.0), st.integers(512, 262144))
def test_a_prompt_fits_and_is_nearly_as_long_as_asked(
    template: int, tokens_a_word: float, wanted: int
) -> None:
    asked: list[int] = []

    def tokens(words: int) -> int:
        asked.append(words)
        return template + round(words * tokens_a_word)

    estimator = TokenEstimator(tokens, 8)
    made = tokens(estimator.pieces_for(wanted))
    assert len(asked) == 3
    assert max(map(tokens, asked[:2])) <= wanted
    assert wanted * (0.99 - SPARE_SHARE) - SPARE_TOKENS - tokens_a_word - 2 <= made <= wanted
    assert estimator.pieces_for(wanted) == asked[2]


@pytest.mark.parametrize("wanted", [896, 2944, 32640, 262016])
def test_a_prompt_fits_though_words_differ_in_tokens(wanted: int) -> None:
    for seed in range(200):
        dice = Random(seed)

        def tokens(words: int, dice: Random = dice) -> int:
            return 20 + round(words * 3.3 + dice.gauss(0, 0.4) * math.sqrt(words))

        made = tokens(TokenEstimator(tokens, 8).pieces_for(wanted))
        assert 0.9 * wanted - SPARE_TOKENS < made <= wanted


PROMPT = context_prompt(10, seed=0, max_tokens=128, context_tokens=1024)


def test_a_full_body_asks_for_every_count() -> None:
    body = request_body(PROMPT, model="qwen", support=UsageSupport.FULL)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["return_token_ids"] is True
    assert (body["min_tokens"], body["ignore_eos"], body["temperature"]) == (128, True, 0.0)


def test_a_plain_body_has_nothing_that_a_strict_server_refuses() -> None:
    body = request_body(PROMPT, model="qwen", support=UsageSupport.PLAIN)
    assert set(body) == {"model", "messages", "max_tokens", "temperature", "stream"}


def test_a_gate_needs_its_suite_and_a_floor() -> None:
    with pytest.raises(UsageError, match="needs suite five"):
        require_gated_suite(["sweep"])
    with pytest.raises(UsageError, match="no floor"):
        floor_of(replace(origin("v2", 51), recipe=None), None)
    assert floor_of(origin("v2", 51), None)[0] == 51
    assert floor_of(origin("v2", 51), 40.0) == (40.0, "--floor")


def test_a_load_of_which_most_failed_is_an_error() -> None:
    run = loaded_run("v2", speed=51.0)
    load = run.suites[-2]

    def judge(failures: int) -> None:
        loads = (replace(it, failures=failures) for it in load.loads)
        cells = (replace(it, load=own) for it, own in zip(load.cells, loads, strict=True))
        suite = replace(load, cells=tuple(cells))
        require_figures(Finished(replace(run, suites=(suite,)), Path("run.json")))

    judge(30)
    with pytest.raises(BenchError, match="93 of 180 requests failed"):
        judge(31)


def test_a_gate_holds_the_mean_against_the_floor() -> None:
    run = sample_run(speed=51)
    five = run.suites[0]
    assert mean_of(five.cells, "end_to_end_tok_s") == pytest.approx(0.96 * 51 * 1.008)
    with pytest.raises(BenchError, match=r"49\.4 tok/s end to end is below the floor of 51"):
        require_gate(run, 51.0, "albond")
    require_gate(run, 49.0, "albond")
    require_gate(run, mean_of(five.cells, "end_to_end_tok_s"), "the floor itself")
    first, *others = five.cells
    rounds = (replace(first.rounds[0], failures=1), *first.rounds[1:])
    failed = replace(five, cells=(replace(first, rounds=rounds), *others))
    with pytest.raises(BenchError, match="1 requests failed"):
        require_gate(replace(run, suites=(failed,)), 49.0, "albond")
