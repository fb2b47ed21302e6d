"""The wait between a container's start and the model's first answer."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.client import Completion, NoSuchRouteError, ServedModel
from sparkdeploy.server.crash import (
    Cause,
    end_before_restart,
    guard_events,
    guard_reports,
    log_tail,
    root_cause,
)
from sparkdeploy.server.facts import EngineFacts
from sparkdeploy.server.log_lines import LineSplitter
from sparkdeploy.server.phases import PhaseTracker, read_whole
from sparkdeploy.units import format_seconds

EARLY_S = 60.0
"""Most containers that die do so before; they are polled more often."""
EARLY_POLL_S = 0.25
LATE_POLL_S = 1.0
LOG_END_TIMEOUT_S = 1.0
TAIL_LINES = 30
EXAMINED_LINES = 5000
ALIVE = frozenset({"created", "running", "paused", "restarting"})
FIRST_PROMPT = "The capital of France is"
FIRST_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Readiness:
    startup_s: float
    answer: Completion
    phases_s: Mapping[str, float]
    facts: EngineFacts


class ContainerDiedError(UnhealthyError):
    """The container, or the server in it that called itself healthy, ended while waited for."""

    def __init__(self, message: str, cause: Cause, log: str) -> None:
        super().__init__(message, hint=cause.hint, detail=log_tail(log, TAIL_LINES))
        self.cause = cause


def wait_until_answering(  # noqa: PLR0913 - the clock, its sleep and the tracker are for tests
    host: DockerHost,
    container_id: str,
    model: ServedModel,
    *,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_phase: Callable[[PhaseTracker, float], None] = lambda _tracker, _elapsed_s: None,
    tracker: PhaseTracker | None = None,
) -> Readiness:
    """Wait until the container runs, /health answers 200 and one request has been answered.

    All times count from this call. Raises ContainerDiedError as soon as it has ended, and
    UnhealthyError at the deadline. A restart by the guard is waited for, unless vLLM died of the
    request that this call sent.
    """
    tracker = tracker or PhaseTracker()
    started_s = clock()

    def elapsed() -> float:
        return clock() - started_s

    with _followed(host, container_id, tracker, elapsed) as log_thread:
        wait = _Wait(host, container_id, model, tracker, log_thread)
        while (answer := wait.ask(deadline_s, elapsed)) is None:
            on_phase(tracker, elapsed())
            left_s = deadline_s - elapsed()
            if left_s <= 0:
                raise wait.too_late(deadline_s)
            sleep(min(left_s, EARLY_POLL_S if elapsed() < EARLY_S else LATE_POLL_S))
        startup_s = elapsed()
    # The thread that follows the log may lag behind, or have lost its stream.
    facts = read_whole(host.logs(container_id, this_run=True)).facts
    return Readiness(startup_s, answer, tracker.durations_s(startup_s), facts)


@dataclass(slots=True)
class _Wait:
    host: DockerHost
    container_id: str
    model: ServedModel
    tracker: PhaseTracker
    log_thread: threading.Thread
    refusal: str = ""
    restarts_before_refusal: int | None = None

    def ask(self, deadline_s: float, elapsed: Callable[[], float]) -> Completion | None:
        """Return the first answer, None while there is none; ContainerDiedError at the end."""
        self._require_alive()
        answer = None
        left_s = deadline_s - elapsed()
        if left_s > 0 and self.model.is_healthy(timeout_s=min(left_s, 1.0)):
            answer = self._try_first_prompt(max(deadline_s - elapsed(), 0.1))
        # Something else on the port may have answered for a container that has just died.
        self._require_alive()
        return answer

    def too_late(self, deadline_s: float) -> UnhealthyError:
        tail = recent_log(self.host, self.container_id, EXAMINED_LINES)
        return UnhealthyError(
            f"no answer within {format_seconds(deadline_s)}, still {self.tracker.describe()}"
            + (f" ({self.refusal})" if self.refusal else ""),
            hint="raise limits.startup_timeout_s if it was still making progress",
            detail=log_tail(tail, TAIL_LINES),
        )

    def _try_first_prompt(self, timeout_s: float) -> Completion | None:
        restarts = self.tracker.restarts
        try:
            try:
                return self.model.complete(FIRST_PROMPT, FIRST_TOKENS, timeout_s=timeout_s)
            except NoSuchRouteError:
                # A model for embeddings or scores writes no text.
                return self.model.pool(FIRST_PROMPT, timeout_s=timeout_s)
        except UnhealthyError as error:
            self.refusal = error.message
            if self.restarts_before_refusal is None:
                self.restarts_before_refusal = restarts
            return None

    def _require_alive(self) -> None:
        fact = self.host.find_container(self.container_id)
        if fact is None or fact.state not in ALIVE:
            self.log_thread.join(LOG_END_TIMEOUT_S)
            raise death(self.host, self.container_id, fact, phase=self.tracker.describe())
        refused_at = self.restarts_before_refusal
        if refused_at is not None and self.tracker.restarts > refused_at:
            log = recent_log(self.host, self.container_id, EXAMINED_LINES)
            log, exit_code, cause = end_before_restart(log)
            message = f"{fact.name} died of its first request (exit code {exit_code})"
            raise ContainerDiedError(f"{message}: {cause.describe()}", cause, log)


@contextlib.contextmanager
def _followed(
    host: DockerHost, container_id: str, tracker: PhaseTracker, clock: Callable[[], float]
) -> Iterator[threading.Thread]:
    with host.open_log(container_id) as stream:

        def read() -> None:
            # The container's state decides: a log that cannot be read is no failure.
            with contextlib.suppress(NodeError):
                for chunk in stream:
                    tracker.feed(chunk, clock())

        thread = threading.Thread(target=read, name=f"log-{container_id[:12]}", daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            stream.close()
            thread.join(LOG_END_TIMEOUT_S)


def death(
    host: DockerHost, container_id: str, fact: ContainerFact | None, *, phase: str = ""
) -> ContainerDiedError:
    """Return the error that explains why a container is dead; `fact` is None when it is gone."""
    if fact is None:
        cause = Cause("removed", "it was removed")
        return ContainerDiedError("the container is gone", cause, log="")
    log = recent_log(host, container_id, EXAMINED_LINES) + f"\n{fact.error}"
    cause = root_cause(log, fact.exit_code, oom_killed=fact.oom_killed)
    while_doing = f" while {phase}" if phase else ""
    code = f"exit code {fact.exit_code}" + (", out of memory" if fact.oom_killed else "")
    events = ", ".join(guard_events(log, fact.exit_code))
    guard = f"; guard events: {events}" if events else ""
    message = f"{fact.name} died{while_doing} ({code}{guard}): {cause.describe()}"
    return ContainerDiedError(message, cause, log)


def restarts_of(host: DockerHost, fact: ContainerFact) -> tuple[int, Cause | None]:
    """Return how often the guard restarted vLLM, by its log's last lines, and why the last time."""
    lines: deque[str] = deque(maxlen=EXAMINED_LINES)
    splitter = LineSplitter()
    try:
        # Docker's last lines may be of any length; the splitter cuts them.
        for chunk in host.logs(fact.container_id, tail=EXAMINED_LINES, this_run=fact):
            lines.extend(splitter.feed(chunk))
    except NodeError:
        return 0, None
    log = "\n".join(lines)
    reports = [it for it in guard_reports(log) if it.get("event") == "restart"]
    if not reports:
        return 0, None
    # The guard counts them itself: earlier ones may be above the part of the log that is read.
    number = reports[-1].get("restart")
    count = number if isinstance(number, int) else 0
    return max(count, len(reports)), end_before_restart(log)[2]


def recent_log(host: DockerHost, container_id: str, line_count: int) -> str:
    return b"".join(host.logs(container_id, tail=line_count)).decode(errors="replace")
