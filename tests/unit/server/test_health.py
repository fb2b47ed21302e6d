"""The wait for the first answer, on a clock of its own."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.errors import UnhealthyError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.client import Completion, NoSuchRouteError, ServedModel
from sparkdeploy.server.health import (
    LATE_POLL_S,
    ContainerDiedError,
    Readiness,
    wait_until_answering,
)
from sparkdeploy.server.phases import PhaseTracker
from tests.unit.server.log_files import recorded

RUNNING = ContainerFact("c1", "sparkdeploy-main", "i1", "running", {})
DEAD = replace(RUNNING, state="exited", exit_code=7)


@dataclass
class Timeline:
    """A container, its log and its server, as functions of a time that only sleeping moves."""

    dies_at_s: float = float("inf")
    healthy_at_s: float = float("inf")
    answers_at_s: float = 0.0
    last_state: ContainerFact | None = DEAD
    log: bytes = b""
    earlier: bytes = b""
    """What it wrote before its last start."""
    now_s: float = 0.0
    sleeps: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.sleeps.append(duration_s)
        self.now_s += duration_s

    def find_container(self, _: str) -> ContainerFact | None:
        return RUNNING if self.now_s < self.dies_at_s else self.last_state

    def logs(self, _: str, *, tail: int | None = None, this_run: bool = False) -> Iterator[bytes]:
        yield self.log if this_run or tail is not None else self.earlier + self.log

    @contextlib.contextmanager
    def open_log(self, _: str) -> Iterator["_Stream"]:
        yield _Stream([self.log])

    def is_healthy(self, *, timeout_s: float) -> bool:
        return self.healthy_at_s <= self.now_s

    def complete(self, prompt: str, max_tokens: int, *, timeout_s: float) -> Completion:
        if self.now_s < self.answers_at_s:
            raise UnhealthyError("500: not yet")
        return Completion("Paris", 5, max_tokens, 0.1)

    def pool(self, text: str, *, timeout_s: float) -> Completion:
        raise AssertionError(f"it writes text, and was asked to pool {text!r} in {timeout_s} s")

    def wait(self, deadline_s: float, **options: Any) -> Readiness:
        return wait_until_answering(
            cast("DockerHost", self),
            "c1",
            cast("ServedModel", self),
            deadline_s=deadline_s,
            clock=self.clock,
            sleep=self.sleep,
            **options,
        )


class _Stream(list[bytes]):
    def close(self) -> None: ...


def test_the_wait_ends_with_the_first_answer() -> None:
    earlier = b"sparkdeploy: draft head active: rows=1\n"
    log = recorded("cpu-0.32-mtp")
    readiness = Timeline(healthy_at_s=30, earlier=earlier, log=log).wait(100)
    assert readiness.answer.text == "Paris"
    assert readiness.startup_s == pytest.approx(30, abs=1)
    assert readiness.facts.vllm_version == "0.32.0"
    assert readiness.facts.draft_head_rows is None


def test_health_alone_is_not_enough() -> None:
    readiness = Timeline(healthy_at_s=5, answers_at_s=20).wait(100)
    assert readiness.startup_s >= 20


@given(dies_at_s=st.floats(0, 500))
def test_a_dead_container_is_noticed_within_two_seconds(dies_at_s: float) -> None:
    timeline = Timeline(dies_at_s=dies_at_s)
    with pytest.raises(ContainerDiedError):
        timeline.wait(1000)
    assert timeline.now_s - dies_at_s <= min(LATE_POLL_S, 2.0)


@given(deadline_s=st.floats(0, 400), healthy_at_s=st.floats(0, 800))
def test_the_wait_never_sleeps_past_its_deadline(deadline_s: float, healthy_at_s: float) -> None:
    timeline = Timeline(healthy_at_s=healthy_at_s)
    with contextlib.suppress(UnhealthyError):
        timeline.wait(deadline_s)
    assert timeline.now_s <= deadline_s + 1e-6


def test_a_death_tells_code_cause_tail_and_phase() -> None:
    log = recorded("crashes/cuda_oom")
    with pytest.raises(ContainerDiedError) as caught:
        Timeline(dies_at_s=3, log=log).wait(100)
    assert "sparkdeploy-main died" in caught.value.message
    assert "exit code 7" in caught.value.message
    assert "CUDA out of memory" in caught.value.message
    assert caught.value.cause.name == "cuda_oom"
    assert "Engine core initialization failed" in (caught.value.detail or "")
    assert "gpu_memory_utilization" in (caught.value.hint or "")


STALL = b'sparkdeploy-guard: {"event": "stalled", "running": 2.0, "still_s": 120.4}\n'


def test_a_hung_engine_is_told_by_the_guard_s_exit_code_alone() -> None:
    with pytest.raises(ContainerDiedError, match=r"moved for 120\.4 s") as caught:
        Timeline(dies_at_s=0, last_state=replace(DEAD, exit_code=87), log=STALL).wait(60)
    assert caught.value.cause.name == "stalled"
    with pytest.raises(ContainerDiedError) as spoken:
        Timeline(dies_at_s=0, last_state=replace(DEAD, exit_code=1), log=STALL).wait(60)
    assert spoken.value.cause.name != "stalled"


def test_an_answer_from_something_else_does_not_save_a_dead_container() -> None:
    class Dying(Timeline):
        def complete(self, prompt: str, max_tokens: int, *, timeout_s: float) -> Completion:
            self.dies_at_s = self.now_s
            return super().complete(prompt, max_tokens, timeout_s=timeout_s)

    with pytest.raises(ContainerDiedError):
        Dying(healthy_at_s=0).wait(10)


def test_the_deadline_tells_the_phase_and_the_servers_words() -> None:
    timeline = Timeline(healthy_at_s=0, answers_at_s=99, log=b"Loading weights took 3.00 seconds\n")
    with pytest.raises(UnhealthyError, match=r"no answer within 10\.0s.*\(500: not yet\)"):
        timeline.wait(10)


def test_a_restart_in_place_is_not_a_death() -> None:
    restart = b'sparkdeploy-guard: {"event": "restart", "exit_code": 1, "restart": 1}\n'
    assert Timeline(healthy_at_s=9, log=restart).wait(20).answer.text == "Paris"


def test_a_server_that_dies_of_its_first_request_is_not_waited_for_again() -> None:
    class DyingOfIt(Timeline):
        def complete(self, prompt: str, max_tokens: int, *, timeout_s: float) -> Completion:
            tracker.feed(self.log)
            raise UnhealthyError("the connection was lost")

    tracker = PhaseTracker()
    died = b"RuntimeError: no kernel image is available for execution on the device\n"
    restart = b'sparkdeploy-guard: {"event": "restart", "exit_code": 3, "restart": 1}\n'
    timeline = DyingOfIt(healthy_at_s=2, log=died + restart + b"loads again\n")
    with pytest.raises(ContainerDiedError, match=r"died of its first request \(exit code 3\)") as e:
        timeline.wait(100, tracker=tracker)
    assert timeline.now_s < 3
    assert e.value.cause.name == "kernel_image"
    assert (e.value.detail or "").endswith(died.decode().strip())


def test_a_model_that_writes_no_text_is_ready_when_its_own_route_answers() -> None:
    class Embedder(Timeline):
        def complete(self, prompt: str, max_tokens: int, *, timeout_s: float) -> Completion:
            raise NoSuchRouteError(f"404 for {prompt!r}, {max_tokens} tokens, {timeout_s} s")

        def pool(self, text: str, *, timeout_s: float) -> Completion:
            del text, timeout_s
            return Completion("", 5, 0, 0.1, path="/v1/embeddings")

    readiness = Embedder(healthy_at_s=2.0).wait(10.0)
    assert readiness.answer.path == "/v1/embeddings"
