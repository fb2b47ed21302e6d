"""A load: its limits, the search for a rate, and what the tool's report becomes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.load import (
    CLOSE,
    LoadMeasurement,
    LoadPlan,
    load_plan,
    parse_limits,
    parse_rates,
    texts_of,
)
from sparkdeploy.bench.measure import MeasuredServer
from sparkdeploy.bench.record import Latency, LoadResult, Quantiles, SuiteResult
from sparkdeploy.bench.streams import Streams
from sparkdeploy.bench.suites import UsageSupport
from sparkdeploy.bench.tables import suite_lines
from sparkdeploy.bench.watch import BenchWatch
from sparkdeploy.errors import BenchError, NodeError, UsageError
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.client import ServedModel
from tests.fakes.tool_container import REPORT, Host
from tests.unit.plain import plain_lines
from tests.unit.program import Done

LIMITS = {"ttft": 2.0, "tpot": 0.1}
FACTORS = (1, 2, 3, 1.5, 4)
"""Of the report's p50: itself, p95, p99, mean and the most."""


def take(host: Host, plan: LoadPlan) -> SuiteResult:
    served: Any = SimpleNamespace(container_id="abc", server=ServedModel("http://x", model="qwen"))
    with Streams("http://127.0.0.1:9") as streams, BenchWatch(None, None) as watch:
        server = MeasuredServer(streams, "qwen", UsageSupport.FULL)
        return LoadMeasurement(plan, cast("DockerHost", host), served, server, watch).run(
            lambda _text: None
        )


def test_a_rate_is_asked_by_the_tool_and_its_report_is_kept() -> None:
    host = Host(REPORT)
    found = take(host, LoadPlan((0.5,), LIMITS, requests=10))
    (argv,) = host.asked
    options = dict(itertools.pairwise(argv[5:]))
    assert (options["--request-rate"], options["--num-prompts"]) == ("0.5", "10")
    assert argv[-3:] == ["--goodput", "ttft:2000", "tpot:100"]
    assert len(json.loads(host.texts)) == 10
    (cell,) = found.cells
    load = cell.load
    assert load is not None
    assert (load.requests, load.failures, load.held, load.most_at_once) == (10, 1, 8, 4)
    assert (load.completed_per_s, load.goodput_per_s) == (0.45, 0.4)
    assert cell.failures == 1
    assert cell.latency == Latency(
        Quantiles(9, *(0.12 * it for it in FACTORS)),
        Quantiles(9, *(0.021 * it for it in FACTORS)),
        Quantiles(3591, *(0.03 * it for it in FACTORS)),
        Quantiles(9, *(9.0 * it for it in FACTORS)),
    )
    assert {name: it.mean for name, it in cell.statistics.items()} == pytest.approx(
        {"end_to_end_tok_s": 180.0, "ttft_p50_s": 0.12, "ttft_p95_s": 0.24, "tpot_p50_s": 0.021}
        | {"gap_p50_s": 0.03, "gap_p99_s": 0.09}
    )
    assert found.tools[0].report == REPORT
    said = "\n".join(plain_lines(suite_lines(found)))
    assert "good: ttft 2 s, tpot 100 ms" in said
    assert "  0.5   0.450   0.400  8/10" in said


def test_every_request_begins_another_way_and_says_how_long_its_answer_may_be() -> None:
    entries = json.loads(texts_of(60, seed=1))
    questions = [entry["conversations"][0]["value"] for entry in entries]
    assert len({text[:20] for text in questions}) == 60
    asked = Counter(len(entry["conversations"][1]["value"].split()) for entry in entries)
    assert set(asked) == {64, 256, 512, 1024}
    assert not {text[:20] for text in questions} & {
        entry["conversations"][0]["value"][:20] for entry in json.loads(texts_of(60, seed=2))
    }


@pytest.mark.parametrize(
    ("end", "notes"),
    [
        (KeyboardInterrupt(), ("interrupted",)),
        (NodeError("no such container"), ("the server no longer answers", "no such container")),
    ],
)
def test_what_ends_a_load_early_keeps_the_rates_before(
    end: BaseException, notes: tuple[str, ...]
) -> None:
    found = take(Host(REPORT, end), LoadPlan((1.0, 2.0)))
    assert not found.is_complete
    assert found.notes == notes
    assert [load.rate_per_s for load in found.loads] == [1.0]


def test_a_tool_that_fails_at_the_first_rate_is_an_error() -> None:
    with pytest.raises(BenchError, match="no request succeeded"):
        take(Host({**REPORT, "completed": 0}), LoadPlan((1.0,)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a limit: ''"),
        ("itl=2s", "not a limit: 'itl=2s'"),
        ("ttft=2", "ttft: not a duration: '2'"),
        ("ttft=2 s", "ttft: not a duration: '2 s'"),
        ("ttft=-2s", "not a duration"),
        ("ttft=0s", "not a duration"),
        ("ttft=2s,", "not a limit: ''"),
        ("ttft=2s,ttft=3s", "limited twice"),
    ],
)
def test_what_is_no_limit_is_named(text: str, words: str) -> None:
    assert parse_limits("ttft=2s, tpot=100ms,e2e=0.5min") == {"ttft": 2, "tpot": 0.1, "e2e": 30}
    with pytest.raises(UsageError, match=words):
        parse_limits(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1,", "nan", "1e9", "inf", "²", "101"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    assert parse_rates("2, 0.5") == (0.5, 2.0)
    with pytest.raises(UsageError, match="not a rate"):
        parse_rates(text)


def test_one_rate_is_judged_and_several_are_searched() -> None:
    assert load_plan("1", 60.0, None, slo="ttft=2s", share=0.9).wanted_share is None
    assert load_plan("1,2", 60.0, None, slo=None, share=0.9).wanted_share is None
    assert load_plan("1,2", 60.0, None, slo="ttft=2s", share=0.9).wanted_share == 0.9
    assert load_plan("0.5", 60.0, None, slo=None, share=0.9).count(0.5) == 30
    with pytest.raises(UsageError, match="--slo is missing"):
        load_plan("auto", 60.0, None, slo=None, share=0.9)


def tried_at(rate_per_s: float, held: int, requests: int = 100) -> LoadResult:
    return LoadResult(rate_per_s, requests, 0, 60.0, 1.0, 1.0, held=held)


def searched(plan: LoadPlan, knee: float) -> list[LoadResult]:
    """What is tried of a server that holds limits up to `knee` requests a second."""
    tries: list[LoadResult] = []
    while (rate := plan.next_rate(tries)) is not None:
        tries.append(tried_at(rate, 100 if rate <= knee else 10))
    return tries


@given(knee=st.floats(0.02, 30))
def test_a_search_ends_close_below_where_limits_break(knee: float) -> None:
    plan = LoadPlan((), LIMITS, 0.95)
    found = plan.sustained(searched(plan, knee))
    assert found is not None
    assert found.rate_per_s is not None
    assert found.fails_at_per_s is not None
    assert found.rate_per_s <= knee < found.fails_at_per_s <= found.rate_per_s * CLOSE
    assert (found.held, found.requests) == (100, 100)


def test_given_rates_are_all_tried_and_then_what_lies_between() -> None:
    tried = [it.rate_per_s for it in searched(LoadPlan((1.0, 2.0, 4.0), LIMITS, 0.95), 2.5)]
    assert tried[:3] == [1.0, 2.0, 4.0]
    assert all(2.0 < rate < 4.0 for rate in tried[3:])
    assert len(tried) > 4
    assert len(searched(LoadPlan((1.0, 2.0)), 0.0)) == 2


def test_a_rate_that_holds_above_one_that_failed_is_not_believed() -> None:
    tries = [tried_at(1.0, 100), tried_at(2.0, 94), tried_at(4.0, 95)]
    found = LoadPlan((1.0, 2.0, 4.0), LIMITS, 0.95).sustained(tries)
    assert found is not None
    assert (found.rate_per_s, found.fails_at_per_s) == (1.0, 2.0)


@pytest.mark.outside
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "auto"), "--slo is missing"),
        (("--rate", "fast"), "not a rate"),
        (("--duration", "60"), "not a duration"),
        (("--url", "http://127.0.0.1:9"), "--url"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    bench: Callable[..., Done], words: tuple[str, ...], said: str
) -> None:
    done = bench("load", *words)
    assert done.returncode == 2
    assert said in done.stderr
