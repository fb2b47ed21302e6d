"""A start that is waited for: its progress, and its ranks, which live and die together."""

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self

from sparkdeploy import labels
from sparkdeploy.deploy.expectation import verify_rank
from sparkdeploy.deploy.launch import Launch
from sparkdeploy.deploy.serving import model_of
from sparkdeploy.errors import NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.facts import parse_meminfo, read_or_none
from sparkdeploy.node.lock import watching
from sparkdeploy.node.node import Node, named
from sparkdeploy.node.reports import parse_time
from sparkdeploy.plan.steps import Plan, plan_as_dict
from sparkdeploy.recipe.answers import TEXT, Answers
from sparkdeploy.server.client import ServedModel
from sparkdeploy.server.crash import HUNG_RANK, Cause
from sparkdeploy.server.health import (
    ALIVE,
    ContainerDiedError,
    Readiness,
    death,
    wait_until_answering,
)
from sparkdeploy.server.log_lines import guard_report, is_nccl_info, lines_of
from sparkdeploy.server.phases import (
    PHASES,
    SPARK_COLD_START_S,
    TINY_MODEL_START_S,
    PhaseTracker,
    last_start_s,
    load_durations,
    save_durations,
)
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.step import PlannedStep, Step
from sparkdeploy.units import format_gib, format_seconds

SAMPLE_EVERY_S = 1.0
SAMPLE_OTHERS_EVERY_S = 5.0
"""Reading another node's memory takes a command over ssh."""
POLL_S = 0.5
LOST_AFTER_S = 5.0
"""How long a node may not answer before its container counts as lost."""
STOP_TIMEOUT_S = 3
LAST_LINES = 300
"""Looked at for what a rank wrote before another ended; its own stop may write many."""


def start_title(deployment: str) -> str:
    return f"start of {deployment}"


def awaited_start(deployment: str, key: str, settings: Settings) -> PlannedStep:
    """Return the start as a step to come, with what it took last time."""
    return PlannedStep(start_title(deployment), last_start_s(settings.state_dir, key))


@dataclass(slots=True)
class Watch:
    """Follows one start on all of its nodes; `details` says afterwards how it went."""

    launch: Launch
    ranks: Mapping[Node, str]
    """The container of each node, by its id."""
    key: str
    deadline_s: float
    plan: Plan | None = None
    """None for containers that were made before."""
    answers: Answers = field(default=TEXT, init=False)
    """What the deployment answers, once its server has answered."""
    tracker: PhaseTracker = field(init=False)
    elapsed_s: float = field(default=0.0, init=False)
    memory_curve: list[dict[str, Any]] = field(default_factory=list, init=False)
    _sampled_s: dict[str, float] = field(default_factory=dict, init=False)
    _awaited: dict[str, PlannedStep] = field(init=False)
    """The phases to come, with what they took last time; nothing is said of the rest."""

    def __post_init__(self) -> None:
        on_cpu = self.plan is not None and self.plan.resolved.engine.runs_on == "cpu"
        usual_s = TINY_MODEL_START_S if on_cpu else SPARK_COLD_START_S
        known_s = load_durations(self.launch.settings.state_dir, self.key)
        self.tracker = PhaseTracker(typical_s=known_s or usual_s)
        names = known_s or usual_s.keys() - {"draft"}
        phases = (phase for phase in PHASES if phase.name in names)
        self._awaited = {it.name: PlannedStep(it.title, known_s.get(it.name)) for it in phases}

    def wait(self) -> Readiness:
        """Return when all answer as planned; the error is of the container that ended first."""
        seen = [node.facts for node in self.plan.observed.nodes] if self.plan is not None else []
        skews_s = {it.name: it.fabric.clock_skew_s for it in seen if it.fabric is not None}
        with GroupWatch(self.ranks, skews_s) as group:
            try:
                readiness = self._wait_for_head()
                for node, container_id in self.ranks.items():
                    facts = readiness.facts if node.is_here else None
                    verify_rank(node, _require_container(node, container_id), facts)
            except SparkdeployError as error:
                first = group.find_first() if len(self.ranks) > 1 else None
                if first is None:
                    raise
                raise group.error_of(first) from error
        save_durations(self.launch.settings.state_dir, self.key, readiness.phases_s)
        console.info(f"  answered after {format_seconds(readiness.startup_s)}")
        return readiness

    def details(self) -> dict[str, Any]:
        """Return what the evidence of a failure holds beside each container's own record."""
        phases_s = self.tracker.durations_s(self.elapsed_s)
        seen: dict[str, Any] = {
            "phases": {"reached": self.tracker.describe(), "seconds": phases_s},
            "memory_curve": self.memory_curve,
        }
        if self.plan is None:
            return seen
        from sparkdeploy.deploy.doctor import doctor_report  # noqa: PLC0415 - for failures only

        try:
            report = doctor_report(self.plan.resolved, self.launch.settings, self.plan)
        except Exception as error:  # noqa: BLE001 - a bug in it must not keep the old one down
            report = {"not_seen": repr(error)}
        return {**seen, "plan": plan_as_dict(self.plan), "doctor": report}

    def _wait_for_head(self) -> Readiness:
        name, settings = self.launch.deployment, self.launch.settings
        command = f"sparkdeploy {self.launch.command}"
        head, head_id = next(item for item in self.ranks.items() if item[0].is_here)
        fact = _require_container(head, head_id)
        with (
            watching(settings.lock_dir, settings.node_name, name, command=command),
            console.step(start_title(name)) as step,
            model_of(fact, settings, head.docker) as model,
        ):
            step.stages(list(self._awaited.values()))
            readiness = wait_until_answering(
                head.docker,
                head_id,
                model,
                deadline_s=self.deadline_s,
                on_phase=partial(self._show, step),
                tracker=self.tracker,
            )
            planned = Answers.of_label(fact.labels.get(labels.ANSWERS, ""))
            self.answers = seen_answers(model, planned, readiness.answer.path)
            self.launch.record.note_answers(fact, self.answers)
            return readiness

    def _show(self, step: Step, tracker: PhaseTracker, elapsed_s: float) -> None:
        self.elapsed_s = elapsed_s
        step.guess(tracker.describe(), tracker.remaining_s(elapsed_s))
        phase = tracker.phase
        step.enter(phase.title)
        later = (self._awaited.get(it.name) for it in PHASES[PHASES.index(phase) + 1 :])
        step.stages([it for it in later if it is not None])
        if tracker.count is not None:
            step.count(*tracker.count, phase.unit)
        step.recent(tuple(tracker.recent))
        for node in self.ranks:
            every_s = SAMPLE_EVERY_S if node.is_here else SAMPLE_OTHERS_EVERY_S
            if elapsed_s - self._sampled_s.get(node.name, -every_s) >= every_s:
                self._sampled_s[node.name] = elapsed_s
                self._sample(node, elapsed_s, step)

    def _sample(self, node: Node, elapsed_s: float, step: Step) -> None:
        available = parse_meminfo(read_or_none(node, "/proc/meminfo") or "").get("MemAvailable", 0)
        sample: dict[str, Any] = {"at_s": round(elapsed_s, 2), "available_bytes": available}
        if len(self.ranks) > 1:
            sample["node"] = node.name
            step.place(node.name, f"{format_gib(available)} of memory free")
        self.memory_curve.append(sample)


def seen_answers(model: ServedModel, planned: Answers, path: str) -> Answers:
    """Return what a server answers whose first answer came over this path."""
    # Its routes are asked for only if another path was planned: vLLM takes seconds to list them.
    if path == planned.first_asked.path:
        return planned
    with contextlib.suppress(UnhealthyError):
        return model.answers(planned)
    return planned.corrected([path])


def _require_container(node: Node, container_id: str) -> ContainerFact:
    with named(node):
        fact = node.docker.find_container(container_id)
    if fact is None:
        raise NodeError(f"{node.name}: container {container_id[:12]} is gone")
    return fact


@dataclass(frozen=True, slots=True)
class End:
    """How one rank ended, or why nobody can say how it is."""

    node: Node
    container_id: str
    fact: ContainerFact | None
    at: datetime | None = None
    """By our clock."""
    lost: NodeError | None = None

    def error(self) -> SparkdeployError:
        name, lost = self.node.name, self.lost
        if lost is None:
            found = death(self.node.docker, self.container_id, self.fact)
            found.message = f"{name}: {found.message}"
            return found
        message = lost.message.removeprefix(f"{name}: ")
        return UnhealthyError(f"{name}: lost while it was waited for: {message}", hint=lost.hint)


class GroupWatch:
    """Looks at all ranks, each in a thread of its own, until one ends, which ends the rest."""

    def __init__(self, ranks: Mapping[Node, str], clock_skews_s: Mapping[str, float]) -> None:
        self.first: End | None = None
        self._ranks = ranks
        self._clock_skews_s = clock_skews_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._follow, args=rank, daemon=True) for rank in ranks.items()
        ]

    def __enter__(self) -> Self:
        # The wait itself sees the end of one alone.
        if len(self._threads) > 1:
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(LOST_AFTER_S)

    def find_first(self) -> End | None:
        """Return the first end, looking once more at every rank; None when all live."""
        with self._lock:
            if self.first is None and (ends := self._ends()):
                self.first = earliest(ends)
                self._over.set()
            return self.first

    def error_of(self, end: End) -> SparkdeployError:
        """Return the error of an end; one that waited for another rank in vain names that."""
        error = end.error()
        if isinstance(error, ContainerDiedError) and end.at is not None:
            others = [(*it, self._clock_skews_s.get(it[0].name, 0.0)) for it in self._ranks.items()]
            error.message += silent_rank(error.cause, end.node, end.at, others)
        return error

    def _follow(self, node: Node, container_id: str) -> None:
        answered_s = time.monotonic()
        while not self._over.wait(POLL_S):
            try:
                end = self._find_end(node, container_id)
                answered_s = time.monotonic()
            except NodeError as error:
                if time.monotonic() - answered_s <= LOST_AFTER_S:
                    continue
                end = End(node, container_id, None, lost=error)
            if end is not None:
                self._end(end)

    def _end(self, noticed: End) -> None:
        """Of all that have ended by now the earliest is the first; the others are stopped."""
        with self._lock:
            # Whoever looked when the watch was left comes too late: nobody waits any more.
            if self._over.is_set():
                return
            others = (end for end in self._ends() if end.node is not noticed.node)
            self.first = earliest((noticed, *others))
            self._over.set()
        stop_all(self._ranks.items())

    def _ends(self) -> list[End]:
        """Return how those ended that live no more; one that does not answer is left out."""
        ends = []
        for node, container_id in self._ranks.items():
            with contextlib.suppress(NodeError):
                ends.append(self._find_end(node, container_id))
        return [end for end in ends if end is not None]

    def _find_end(self, node: Node, container_id: str) -> End | None:
        fact = node.docker.find_container(container_id)
        if fact is not None and fact.state in ALIVE:
            return None
        at = parse_time(fact.finished_at) if fact is not None else None
        skew = timedelta(seconds=self._clock_skews_s.get(node.name, 0.0))
        return End(node, container_id, fact, at - skew if at is not None else None)


def earliest(ends: Sequence[End]) -> End:
    """Return the first end; one without a time only when none has one."""
    return min(ends, key=lambda end: end.at or datetime.max.replace(tzinfo=UTC))


def silent_rank(
    cause: Cause, died: Node, at: datetime, ranks: Iterable[tuple[Node, str, float]]
) -> str:
    """Name the other rank that wrote nothing for longest; `ranks` come with their clocks' skews."""
    if cause.name != HUNG_RANK:
        return ""
    others = (rank for rank in ranks if rank[0] is not died)
    ends = [line for rank in others if (line := _last_line(*rank, at)) is not None]
    if not ends:
        return ""
    written_at, name, text = min(ends)
    return f"; {name} was silent since {written_at:%H:%M:%S} UTC, its last line: {text}"


def _last_line(
    node: Node, container_id: str, skew_s: float, before: datetime
) -> tuple[datetime, str, str] | None:
    with contextlib.suppress(NodeError):
        raw = b"".join(node.docker.logs(container_id, tail=LAST_LINES, timestamps=True))
        for line in reversed(lines_of(raw)):
            stamp, _, text = line.partition(" ")
            at = parse_time(stamp)
            # What it wrote while it was stopped for the death of another says nothing.
            at = at - timedelta(seconds=skew_s) if at is not None else None
            if at is not None and at < before and not (is_nccl_info(text) or guard_report(text)):
                return at, node.name, text.strip()
    return None


def stop_all(ranks: Iterable[tuple[Node, str]]) -> None:
    """Stop the ranks of a deployment that lost one: they hang without it."""
    for node, container_id in ranks:
        with contextlib.suppress(NodeError):
            node.docker.stop(container_id, timeout_s=STOP_TIMEOUT_S)
