"""The soak of the GPU stand: what it takes for a fault, and what it asks of a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tests.fakes.http_server import Handler, HttpServer, serving
from tests.unit.plan.stand import loaded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

GIB = 1 << 30


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("soak", monkeypatch)


def sample(number: int, **changed: object) -> dict[str, Any]:
    """The line of a server that bears it: half of its drafts are accepted, its memory stays."""
    return {
        "kind": "sample", "at_s": 10.0 * number, "requests": number, "cancelled": 0,
        "tokens": 500 * number, "errors": [], "silent_s": 0.5, "drafted": 1000.0 * number,
        "accepted": 500.0 * number, "host_bytes": 8 * GIB, "gpu_bytes": 12 * GIB,
        "shortest_prompt": 12_000, "longest_prompt": 21_000, **changed,
    }  # fmt: skip


def canary(when: str, *texts: str) -> dict[str, Any]:
    return {"kind": "canary", "when": when, "texts": list(texts)}


def soaked(*samples: dict[str, Any]) -> list[dict[str, Any]]:
    return [canary("before", "a", "b"), *samples, canary("after", "a", "b")]


def test_a_soak_that_went_well_has_no_fault(soak: ModuleType) -> None:
    verdict = soak.judge(soaked(*(sample(n) for n in range(1, 91))))
    assert verdict.faults == ()
    assert verdict.figures["acceptance_halves"] == (0.5, 0.5)
    assert verdict.figures["requests"] == 90


@pytest.mark.parametrize(
    ("number", "changed", "fault"),
    [
        (40, {"errors": ["HTTP Error 500"]}, "1 errors, the first: HTTP Error 500"),
        (40, {"silent_s": 75.0}, "stalled: 75 s without a token"),
    ],
)
def test_one_bad_line_is_a_fault(
    soak: ModuleType, number: int, changed: dict[str, Any], fault: str
) -> None:
    lines = soaked(*(sample(n, **(changed if n == number else {})) for n in range(1, 91)))
    assert soak.judge(lines).faults == (fault,)


@pytest.mark.parametrize("name", ["host_bytes", "gpu_bytes"])
def test_memory_that_goes_on_growing_is_a_fault_and_a_warm_up_is_none(
    soak: ModuleType, name: str
) -> None:
    leaks = soaked(*(sample(n, **{name: 8 * GIB + n * (16 << 20)}) for n in range(1, 91)))
    (fault,) = soak.judge(leaks).faults
    assert fault.startswith(f"{name} grew by ")
    warms = soaked(*(sample(n, **{name: min(n, 15) * GIB}) for n in range(1, 91)))
    assert soak.judge(warms).faults == ()


def test_acceptance_that_sinks_is_a_fault(soak: ModuleType) -> None:
    lines = soaked(
        *(sample(n, accepted=500.0 * min(n, 54) + 100.0 * max(0, n - 54)) for n in range(1, 91))
    )
    assert soak.judge(lines).faults == ("accepted drafts went from 50% to 10%",)


def test_texts_that_changed_and_those_that_were_not_asked_again(soak: ModuleType) -> None:
    samples = [sample(n) for n in range(1, 91)]
    changed = [canary("before", "a", "b"), *samples, canary("after", "a", "c")]
    assert soak.judge(changed).faults == ("greedy texts [1] changed",)
    cut = [canary("before", "a", "b"), *samples]
    assert soak.judge(cut).faults == ("the greedy texts were not asked again",)


class SmallServer(Handler):
    """A token a word; streams replies of fifty words, says what a server with drafts counts."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def get(self) -> None:
        counted = "\n".join(
            f'vllm:spec_decode_num_{name}_tokens_total{{engine="0"}} {20.0 * len(self.asked)}'
            for name in ("draft", "accepted")
        )
        self.stream(counted.encode())

    def post(self) -> None:
        body = self.body()
        self.asked.append(body)
        if not body.get("stream"):
            usage = {"prompt_tokens": len(body["prompt"].split())}
            self.stream(json.dumps({"choices": [{"text": "yes"}], "usage": usage}).encode())
            return
        prompt = sum(len(message["content"].split()) for message in body["messages"])
        event = {"choices": [{"delta": {"content": "a "}}], "usage": {"prompt_tokens": prompt}}
        self.stream(f"data: {json.dumps(event)}\n\n".encode() * 50 + b"data: [DONE]\n\n")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(SmallServer, "asked", [])
    with serving(HttpServer(SmallServer)) as server:
        yield server.url


def test_a_conversation_grows_to_its_longest_and_a_cancelled_turn_is_asked_again(
    soak: ModuleType, url: str
) -> None:
    target, tally = soak.Target(url, "twin", opening=1200, longest=3000), soak.Tally()
    # Every seventh request of an agent is cancelled, every fourth has to call a tool.
    soak.Agent(5, target, tally, until=float("inf"))._conversation()
    sizes = [len(body["messages"]) for body in SmallServer.asked]
    assert sizes == [2, 4, 4, 6]
    assert ["tool_choice" in body for body in SmallServer.asked] == [False, False, True, False]
    seen = tally.taken()
    assert (seen["requests"], seen["cancelled"], seen["errors"]) == (4, 1, [])
    assert seen["tokens"] == 3 * 50 + soak.CANCELLED_AFTER + 1
    assert 1200 <= seen["shortest_prompt"] < 3000 <= seen["longest_prompt"] < 4500


def test_a_server_that_dies_is_judged(
    soak: ModuleType, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = soak.Target(url, "twin", opening=1200, longest=3000)

    answers = iter((["a"], ["a"]))

    def dying(asked: Any) -> list[str]:
        try:
            return next(answers)
        except StopIteration:
            raise ConnectionRefusedError(111, asked.url) from None

    monkeypatch.setattr(soak.Target, "canaries", dying)
    verdict = soak.run(target, tmp_path, agents=1, seconds=0.1, pid=None)
    assert "1 errors, the first: the greedy texts at the end: Connection" in verdict.faults[1]
    assert verdict.faults[-1] == "the greedy texts were not asked again"
