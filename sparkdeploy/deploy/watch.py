"""A start that is waited for: its progress, and its parts, which live and die together."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from sparkdeploy.deploy.expectation import verify_part
from sparkdeploy.deploy.serving import served_model
from sparkdeploy.errors import NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.node.facts import parse_meminfo, read_or_none
from sparkdeploy.node.lock import watching
from sparkdeploy.node.node import named
from sparkdeploy.node.reports import parse_time
from sparkdeploy.server.health import ALIVE, death, wait_until_answering
from sparkdeploy.server.phases import (
    PHASES,
    SPARK_COLD_START_S,
    UNITS,
    PhaseTracker,
    load_durations,
    save_durations,
    similar_start_s,
)
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.step import PlannedStep
from sparkdeploy.units import format_gib, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Node
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings
    from sparkdeploy.terminal.step import Step

SAMPLE_EVERY_S = 1.0
SAMPLE_OTHERS_EVERY_S = 5.0
"""Reading another node's memory takes a command over ssh."""
POLL_S = 0.5
LOST_AFTER_S = 5.0
"""How long a node may not answer before its container counts as lost."""
STOP_TIMEOUT_S = 3
NOT_KNOWN = "not known here, for it was not started on this machine yet"


def start_title(deployment: str) -> str:
    return f"start of {deployment}"


def start_pace(image: str, recipe: str, node_count: int) -> str:
    """Return the key under which the durations of such starts are remembered."""
    return f"{image} {recipe}" + (f" on {node_count} nodes" if node_count > 1 else "")


def plan_pace(plan: Plan) -> str:
    """Return the key under which the durations of a plan's starts are remembered."""
    return start_pace(
        plan.images[-1].stage.tag, plan.resolved.recipe.name, len(plan.topology.nodes)
    )


def last_start_s(pace: str, settings: Settings) -> float | None:
    """Return what such a start took here last time; None where there was none."""
    known_s = load_durations(settings.state_dir, pace, otherwise={})
    return sum(known_s.values()) if known_s else None


def awaited_start(deployment: str, pace: str, settings: Settings) -> PlannedStep:
    """Return the start as a step to come, with what it took last time."""
    return PlannedStep(start_title(deployment), last_start_s(pace, settings))


def expected_downtime(pace: str, settings: Settings) -> str:
    """Say how long nobody is answered while a start takes a running one's place, and who says so.

    The old one ends within seconds; the start of the new one is what takes long.
    """
    last_s = last_start_s(pace, settings)
    if last_s is not None:
        return f"about {format_seconds(last_s)}, as its last start here took"
    similar_s = similar_start_s(settings.state_dir, pace)
    if similar_s is not None:
        return f"about {format_seconds(similar_s)}, as a start of it took here on another image"
    return NOT_KNOWN


@dataclass(slots=True)
class Watch:
    """Follows one start on all of its nodes; `details` tells afterwards how it went."""

    deployment: str
    command: str
    """Who waits, for `status`: `up v2 --name main`."""
    deadline_s: float
    pace: str
    """The key under which the durations of such starts are remembered."""
    parts: Mapping[Node, str]
    settings: Settings
    usual_s: Mapping[str, float] = field(default_factory=lambda: SPARK_COLD_START_S)
    clock_skews_s: Mapping[str, float] = field(default_factory=dict)
    """How far each node's clock is from ours."""
    tracker: PhaseTracker = field(init=False)
    elapsed_s: float = field(default=0.0, init=False)
    memory_curve: list[dict[str, Any]] = field(default_factory=list, init=False)
    _sampled_s: dict[str, float] = field(default_factory=dict, init=False)
    _awaited: dict[str, PlannedStep] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        state_dir = self.settings.state_dir
        recalled_s = load_durations(state_dir, self.pace, otherwise=self.usual_s)
        self.tracker = PhaseTracker(typical_s=recalled_s)

    def wait(self) -> Readiness:
        """Return when the model has answered and every part is what was planned.

        Raises what `wait_until_answering` and `verify_part` do; among several nodes the error is
        that of the container that ended first, with its node's name.
        """
        with GroupWatch(self._members()) as group:
            try:
                readiness = self._wait_for_head()
                for node, container_id in self.parts.items():
                    facts = readiness.facts if node.is_here else None
                    verify_part(node, _found(node, container_id), facts)
            except SparkdeployError as error:
                first = group.find_first()
                if first is None:
                    raise
                raise first.error() from error
        save_durations(self.settings.state_dir, self.pace, readiness.phases_s)
        console.info(f"  answered after {format_seconds(readiness.startup_s)}")
        return readiness

    def details(self) -> dict[str, Any]:
        """Return what the evidence of a failure holds beside each container's own record."""
        phases_s = self.tracker.durations_s(self.elapsed_s)
        return {
            "phases": {"reached": self.tracker.describe(), "seconds": phases_s},
            "memory_curve": self.memory_curve,
        }

    def _members(self) -> list[Member]:
        """Return who is watched beside the wait itself, which sees the end of one alone."""
        if len(self.parts) == 1:
            return []
        return [
            Member(node.name, node.docker, container_id, self.clock_skews_s.get(node.name, 0.0))
            for node, container_id in self.parts.items()
        ]

    def _wait_for_head(self) -> Readiness:
        settings, command = self.settings, f"sparkdeploy {self.command}"
        head = next(node for node in self.parts if node.is_here)
        with (
            watching(settings.lock_dir, settings.node_name, self.deployment, command=command),
            console.step(start_title(self.deployment)) as step,
            served_model(head.docker, self.parts[head], settings) as model,
        ):
            self._awaited = self._recalled_stages()
            step.stages(list(self._awaited.values()))
            return wait_until_answering(
                head.docker,
                self.parts[head],
                model,
                deadline_s=self.deadline_s,
                on_phase=lambda tracker, elapsed_s: self._note(step, tracker, elapsed_s),
                tracker=self.tracker,
            )

    def _note(self, step: Step, tracker: PhaseTracker, elapsed_s: float) -> None:
        self.elapsed_s = elapsed_s
        step.guess(tracker.describe(), tracker.remaining_s(elapsed_s))
        self._draw(step, tracker)
        for node in self.parts:
            every_s = SAMPLE_EVERY_S if node.is_here else SAMPLE_OTHERS_EVERY_S
            if elapsed_s - self._sampled_s.get(node.name, -every_s) >= every_s:
                self._sampled_s[node.name] = elapsed_s
                self._sample(node, elapsed_s)
                if len(self.parts) > 1:
                    available = self.memory_curve[-1]["available_bytes"]
                    step.place(node.name, f"{format_gib(available)} of memory free")

    def _draw(self, step: Step, tracker: PhaseTracker) -> None:
        """Show the phase as a stage of the step, with the bar that the log shows of it."""
        phase = tracker.phase
        step.enter(phase.title)
        later = PHASES[PHASES.index(phase) + 1 :]
        step.stages([self._awaited[it.name] for it in later if it.name in self._awaited])
        if tracker.count is not None:
            step.count(*tracker.count, UNITS.get(phase.name, ""))
        step.recent(tuple(tracker.recent))

    def _recalled_stages(self) -> dict[str, PlannedStep]:
        """Return the phases to come, with what they took last time; nothing is said of the rest."""
        known_s = load_durations(self.settings.state_dir, self.pace, otherwise={})
        names = known_s or {name for name in self.usual_s if name != "draft"}
        phases = [phase for phase in PHASES if phase.name in names]
        return {phase.name: PlannedStep(phase.title, known_s.get(phase.name)) for phase in phases}

    def _sample(self, node: Node, elapsed_s: float) -> None:
        available = parse_meminfo(read_or_none(node, "/proc/meminfo") or "").get("MemAvailable", 0)
        sample: dict[str, Any] = {"at_s": round(elapsed_s, 2), "available_bytes": available}
        self.memory_curve.append(sample if len(self.parts) == 1 else {**sample, "node": node.name})


def _found(node: Node, container_id: str) -> ContainerFact:
    with named(node):
        fact = node.docker.find_container(container_id)
    if fact is None:
        raise NodeError(f"{node.name}: container {container_id[:12]} is gone")
    return fact


@dataclass(frozen=True, slots=True)
class Member:
    """One node's container; `clock_skew_s` is how far that node's clock is from ours."""

    node: str
    host: DockerHost
    container_id: str
    clock_skew_s: float = 0.0

    def find_end(self) -> End | None:
        fact = self.host.find_container(self.container_id)
        return End(self, fact) if fact is None or fact.state not in ALIVE else None


@dataclass(frozen=True, slots=True)
class End:
    """How one member ended, or why nobody can say how it is."""

    member: Member
    fact: ContainerFact | None
    lost: NodeError | None = None

    def ended_at(self) -> datetime | None:
        """Return when, by our clock."""
        finished_at = parse_time(self.fact.finished_at) if self.fact else None
        return finished_at - timedelta(seconds=self.member.clock_skew_s) if finished_at else None

    def error(self) -> SparkdeployError:
        node = self.member.node
        if self.lost is not None:
            message = self.lost.message.removeprefix(f"{node}: ")
            return UnhealthyError(
                f"{node}: lost while it was waited for: {message}", hint=self.lost.hint
            )
        found = death(self.member.host, self.member.container_id, self.fact)
        found.message = f"{node}: {found.message}"
        return found


@dataclass(slots=True)
class GroupWatch:
    """Looks at all members until one ends, which ends the rest; a context manager."""

    members: Sequence[Member]
    first: End | None = None
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        for member in self.members:
            thread = threading.Thread(target=self._follow, args=(member,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LOST_AFTER_S)

    def find_first(self) -> End | None:
        """Return the first end, looking once more at every member; None when all live."""
        with self._lock:
            if self.first is None and (ends := _ends(self.members)):
                self.first = earliest(ends)
                self._over.set()
            return self.first

    def _follow(self, member: Member) -> None:
        answered_s = time.monotonic()
        while not self._over.wait(POLL_S):
            try:
                end = member.find_end()
                answered_s = time.monotonic()
            except NodeError as error:
                if time.monotonic() - answered_s <= LOST_AFTER_S:
                    continue
                end = End(member, None, error)
            if end is not None:
                self._end(end)

    def _end(self, noticed: End) -> None:
        """Of all that have ended by now the earliest is the first; the others are stopped."""
        with self._lock:
            if self._over.is_set():
                return
            others = (member for member in self.members if member is not noticed.member)
            self.first = earliest((noticed, *_ends(others)))
            self._over.set()
        for member in self.members:
            with contextlib.suppress(NodeError):
                member.host.stop(member.container_id, timeout_s=STOP_TIMEOUT_S)


def _ends(members: Iterable[Member]) -> list[End]:
    found: list[End | None] = []
    for member in members:
        with contextlib.suppress(NodeError):
            found.append(member.find_end())
    return [end for end in found if end is not None]


def earliest(ends: Sequence[End]) -> End:
    """Return the first end; one without a time only when none has one."""
    timed = [(ended_at, end) for end in ends if (ended_at := end.ended_at()) is not None]
    return min(timed, key=lambda item: item[0])[1] if timed else ends[0]
