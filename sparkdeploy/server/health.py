"""The wait between a container's start and the model's first answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from sparkdeploy.console import format_seconds
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.server.forensics import (
    EXIT_MEMORY_FLOOR,
    Cause,
    guard_events,
    log_tail,
    root_cause,
    until_last_restart,
)
from sparkdeploy.server.log_follower import followed
from sparkdeploy.server.phases import PhaseTracker, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.server.client import Completion
    from sparkdeploy.server.facts import EngineFacts

EARLY_S = 60.0
EARLY_POLL_S = 0.25
LATE_POLL_S = 1.0
TAIL_LINES = 30
EXAMINED_LINES = 5000
FIRST_PROMPT = "The capital of France is"
FIRST_TOKENS = 4


class Answering(Protocol):
    """What the wait needs of a served model."""

    def is_healthy(self, *, timeout_s: float) -> bool:
        """Say whether the server calls itself healthy."""

    def complete(self, prompt: str, max_tokens: int, *, timeout_s: float) -> Completion:
        """Produce a text, or raise UnhealthyError."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """How a deployment came up."""

    startup_s: float
    answer: Completion
    phases_s: Mapping[str, float]
    facts: EngineFacts


class ContainerDiedError(UnhealthyError):
    """The container, or the server in it that called itself healthy, ended while waited for."""

    def __init__(
        self, fact: ContainerFact | None, cause: Cause, *, message: str, tail: str
    ) -> None:
        """Keep the last state (None when the container is gone) and the cause."""
        super().__init__(message, hint=cause.hint, detail=tail)
        self.fact = fact
        self.cause = cause


def wait_until_answering(  # noqa: PLR0913 - the clock, its sleep and the tracker are for tests
    host: DockerHost,
    container_id: str,
    model: Answering,
    *,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_phase: Callable[[PhaseTracker, float], None] = lambda _tracker, _elapsed_s: None,
    tracker: PhaseTracker | None = None,
) -> Readiness:
    """Wait until the container runs, /health says so and one completion has succeeded.

    `deadline_s` counts from this call. `on_phase` is called after every look with the tracker and
    the seconds so far (the tracker's times count from this call too). Raises ContainerDiedError
    as soon as the container has ended, with exit code, root cause and log tail, and
    UnhealthyError at the deadline. A guard that restarts vLLM in place keeps the wait going,
    unless it died of the request that this call had sent it: the next one would kill it again.
    """
    tracker = tracker or PhaseTracker()
    started_s = clock()
    wait = _Wait(
        look=lambda: host.find_container(container_id),
        model=model,
        tracker=tracker,
        deadline_s=deadline_s,
        elapsed=lambda: clock() - started_s,
        sleep=sleep,
        on_phase=on_phase,
    )
    with followed(host, container_id, tracker, clock=wait.elapsed) as log_thread:
        try:
            readiness = wait.run()
        except _EndedError as ended:
            log_thread.join(1.0)
            raise death(host, container_id, ended.fact, phase=tracker.describe()) from None
        except _AnswerKilledError as killed:
            raise death_by_answering(host, container_id, killed.fact) from None
        except _LateError as late:
            tail = recent_log(host, container_id, TAIL_LINES)
            raise UnhealthyError(
                f"no answer within {format_seconds(deadline_s)}, still {tracker.describe()}"
                + (f" ({late.words})" if late.words else ""),
                hint="raise limits.startup_timeout_s if it was still making progress",
                detail=log_tail(tail, TAIL_LINES),
            ) from None
    # The thread that follows the log may lag behind, or have lost its stream.
    return replace(readiness, facts=read_whole(host.logs(container_id, this_run=True)).facts)


def death(
    host: DockerHost, container_id: str, fact: ContainerFact | None, *, phase: str = ""
) -> ContainerDiedError:
    """Return the error that tells why a container is dead; `fact` is None when it is gone."""
    if fact is None:
        cause = Cause("removed", "", "somebody removed it")
        return ContainerDiedError(None, cause, message="the container is gone", tail="")
    log = recent_log(host, container_id, EXAMINED_LINES) + f"\n{fact.error}"
    cause = root_cause(log, fact.exit_code, oom_killed=fact.oom_killed)
    while_doing = f" while {phase}" if phase else ""
    code = f"exit code {fact.exit_code}" + (", out of memory" if fact.oom_killed else "")
    said = ", ".join(guard_events(log, fact.exit_code))
    guard = f"; the guard said: {said}" if said else ""
    message = f"{fact.name} died{while_doing} ({code}{guard}): {cause.describe()}"
    return ContainerDiedError(fact, cause, message=message, tail=log_tail(log, TAIL_LINES))


def death_by_answering(
    host: DockerHost, container_id: str, fact: ContainerFact
) -> ContainerDiedError:
    """Return the error that tells why the server died before the guard's last restart."""
    log, exit_code = until_last_restart(recent_log(host, container_id, EXAMINED_LINES))
    # After a memory trip the guard starts nothing again: this code is vLLM's own.
    own = None if exit_code == EXIT_MEMORY_FLOOR else exit_code
    cause = root_cause(log, own, oom_killed=False)
    message = f"{fact.name} died of its first request (exit code {exit_code}): {cause.describe()}"
    return ContainerDiedError(fact, cause, message=message, tail=log_tail(log, TAIL_LINES))


def recent_log(host: DockerHost, container_id: str, line_count: int) -> str:
    """Return the end of a container's log."""
    return b"".join(host.logs(container_id, tail=line_count)).decode(errors="replace")


class _EndedError(Exception):
    def __init__(self, fact: ContainerFact | None) -> None:
        super().__init__()
        self.fact = fact


class _AnswerKilledError(Exception):
    def __init__(self, fact: ContainerFact) -> None:
        super().__init__()
        self.fact = fact


class _LateError(Exception):
    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words


@dataclass(slots=True)
class _Wait:
    look: Callable[[], ContainerFact | None]
    model: Answering
    tracker: PhaseTracker
    deadline_s: float
    elapsed: Callable[[], float]
    sleep: Callable[[float], None]
    on_phase: Callable[[PhaseTracker, float], None]
    _refusal: str = field(default="", init=False)
    _restarts_before_refusal: int | None = field(default=None, init=False)

    def run(self) -> Readiness:
        while True:
            self._check_alive()
            answer = self._ask()
            if answer is not None:
                # Something else on the port may have answered for a container that has just died.
                self._check_alive()
                return self._readiness(answer)
            self._check_alive()
            self.on_phase(self.tracker, self.elapsed())
            left_s = self.deadline_s - self.elapsed()
            if left_s <= 0:
                raise _LateError(self._refusal)
            self.sleep(min(left_s, poll_interval_s(self.elapsed())))

    def _check_alive(self) -> None:
        fact = self.look()
        if fact is None or fact.state not in {"created", "running", "paused", "restarting"}:
            raise _EndedError(fact)
        refused_at = self._restarts_before_refusal
        if refused_at is not None and self.tracker.restarts > refused_at:
            raise _AnswerKilledError(fact)

    def _ask(self) -> Completion | None:
        left_s = self.deadline_s - self.elapsed()
        if left_s <= 0 or not self.model.is_healthy(timeout_s=min(left_s, 1.0)):
            return None
        left_s = max(self.deadline_s - self.elapsed(), 0.1)
        restarts = self.tracker.restarts
        try:
            return self.model.complete(FIRST_PROMPT, FIRST_TOKENS, timeout_s=left_s)
        except UnhealthyError as error:
            self._refusal = error.message
            if self._restarts_before_refusal is None:
                self._restarts_before_refusal = restarts
            return None

    def _readiness(self, answer: Completion) -> Readiness:
        elapsed_s = self.elapsed()
        phases_s = self.tracker.durations_s(elapsed_s)
        return Readiness(elapsed_s, answer, phases_s, self.tracker.facts)


def poll_interval_s(elapsed_s: float) -> float:
    """Return how long to rest between two looks: short at first, when most containers die."""
    return EARLY_POLL_S if elapsed_s < EARLY_S else LATE_POLL_S
