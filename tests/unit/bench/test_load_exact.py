"""A load against a script: every latency, what was held, and what the client was late by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.bench.load.measure import LoadMeasurement
from sparkdeploy.bench.load.plan import Arrivals, Law, LoadPlan, Texts, parse_limits
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.measure import MeasuredServer
from sparkdeploy.bench.record import FailureKind
from sparkdeploy.bench.suites import Prompt, UsageSupport
from sparkdeploy.bench.watch import BenchWatch
from tests.fakes.scripted_server import DONE, Action, Arrive, Refuse, Write, arriving, event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.record import SuiteResult

pytestmark = pytest.mark.outside

BEGAN_S = 1.0
"""When the first request, which counts nowhere, was answered: the load begins then."""
TEXTS = Texts("own", (Prompt("hello", ({"role": "user", "content": "Hello"},), 8),))


def answer(stream: int, came_s: float, waits: Sequence[float]) -> list[Action | Arrive]:
    """Answer a token at each moment after it came; the last write ends it."""
    actions: list[Action | Arrive] = [Arrive(came_s, stream)]
    for count, wait_s in enumerate(waits, 1):
        data = event(ids=[count], text="w", usage=(7, count))
        last = DONE if count == len(waits) else b""
        actions.append(Write(came_s + wait_s, stream, data + last))
    return actions


FIRST = answer(0, BEGAN_S - 0.5, [0.5])


def take(actions: Sequence[Action | Arrive], coming: Arrivals) -> SuiteResult:
    plan = LoadPlan(coming, TEXTS, (1.0,), limits=parse_limits("ttft=2s,tpot=500ms"))
    with arriving([*FIRST, *actions]) as (_, streams), BenchWatch(None, None) as watch:
        server = MeasuredServer(streams, "qwen", UsageSupport.FULL)
        return LoadMeasurement(plan, server, watch).run(lambda _text: None)


def test_nobody_waits_for_others_and_limits_hold_up_to_themselves() -> None:
    actions: list[Action | Arrive] = [
        *answer(1, 2.0, [2.0, 2.5, 3.0]),  # at both limits
        *answer(2, 3.0, [0.5, 1.25, 1.75]),  # its tokens too slow
        *answer(3, 4.0, [2.25, 2.375]),  # its first token too late
        Arrive(5.0, 4),
        Refuse(5.25, 4, 503, "busy"),
        *answer(5, 6.0, [0.25, 0.375]),
    ]

    result = take(actions, Arrivals(Law.CONSTANT, requests=5, ramp_s=0.0))

    (cell,) = result.cells
    load = cell.load
    assert load is not None
    assert result.is_complete
    assert result.asking is Asking.OPEN_LOOP
    assert result.notes == ()
    samples = cell.samples
    assert [sample.sent_s for sample in samples] == pytest.approx([1, 2, 3, 4, 5])
    assert [sample.ttft_s for sample in samples] == [2.0, 0.5, 2.25, None, 0.25]
    assert [sample.duration_s for sample in samples] == [3.0, 1.75, 2.375, 0.25, 0.375]
    assert samples[3].failure is not None
    assert samples[3].failure.kind is FailureKind.REFUSED
    assert (load.requests, load.failures, load.held) == (5, 1, 2)
    # From the beginning at 1.0 to the last token at 6.375.
    assert load.window_s == pytest.approx(5.375)
    assert load.completed_per_s == pytest.approx(4 / 5.375)
    assert load.goodput_per_s == pytest.approx(2 / 5.375)
    assert load.completion_tok_s == pytest.approx(10 / 5.375)
    assert load.prompt_tok_s == pytest.approx(28 / 5.375)
    assert load.most_in_flight == 3
    assert cell.latency.ttft_s is not None
    assert (cell.latency.ttft_s.count, cell.latency.ttft_s.max) == (4, 2.25)
    assert cell.latency.ttft_s.p50 == pytest.approx(1.25)
    assert (load.late_requests, load.latest_s) == (0, 0.0)


def test_a_ramp_is_in_the_samples_and_in_no_figure() -> None:
    # One request a second, constant, after a ramp of four: sqrt(8 n) until it ends.
    actions = [
        *answer(1, 1.0 + 8**0.5, [1.9, 2.0]),
        *answer(2, 5.0, [0.25, 0.5]),
        *answer(3, 6.0, [0.25, 0.5]),
    ]

    result = take(actions, Arrivals(Law.CONSTANT, requests=1, ramp_s=4.0))

    (cell,) = result.cells
    assert [sample.round for sample in cell.samples] == [0, 1, 1]
    assert cell.load is not None
    assert cell.load.requests == 2
    assert cell.load.window_s == pytest.approx(1.5)
    assert cell.latency.ttft_s is not None
    assert cell.latency.ttft_s.max == pytest.approx(0.25)


def test_a_late_client_says_so_itself() -> None:
    actions = [
        *answer(1, 2.0, [0.125, 0.25]),
        *answer(2, 3.75, [0.0625, 0.125]),  # due at 3.0
        *answer(3, 4.0, [0.125, 0.25]),
    ]

    result = take(actions, Arrivals(Law.CONSTANT, requests=3, ramp_s=0.0))

    (cell,) = result.cells
    assert [sample.late_s for sample in cell.samples] == pytest.approx([0, 0.75, 0])
    assert cell.load is not None
    assert (cell.load.late_requests, cell.load.latest_s) == (1, 0.75)
    (note,) = result.notes
    assert "the client itself was late: 1 of 3 requests" in note
    # What the server needed is counted from the sending.
    assert cell.samples[1].ttft_s == pytest.approx(0.0625)
