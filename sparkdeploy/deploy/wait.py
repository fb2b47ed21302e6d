"""A start that is waited for: its progress, and its ranks, which live and die together."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from sparkdeploy.deploy.expectation import verify_rank
from sparkdeploy.deploy.serving import model_of
from sparkdeploy.errors import NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.node.facts import parse_meminfo, read_or_none
from sparkdeploy.node.lock import watching
from sparkdeploy.node.node import named
from sparkdeploy.node.reports import parse_time
from sparkdeploy.plan.steps import plan_as_dict
from sparkdeploy.server.health import ALIVE, death, wait_until_answering
from sparkdeploy.server.phases import (
    PHASES,
    SPARK_COLD_START_S,
    TINY_MODEL_START_S,
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

    from sparkdeploy.deploy.launch import Launch
    from sparkdeploy.node.container import ContainerFact
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


def timing_key(image: str, recipe: str, node_count: int) -> str:
    """Return the key under which the durations of such starts are remembered."""
    return f"{image} {recipe}" + (f" on {node_count} nodes" if node_count > 1 else "")


def timing_key_of(plan: Plan) -> str:
    tag, recipe = plan.images[-1].stage.tag, plan.resolved.recipe.name
    return timing_key(tag, recipe, len(plan.topology.nodes))


def awaited_start(deployment: str, key: str, settings: Settings) -> PlannedStep:
    """Return the start as a step to come, with what it took last time."""
    return PlannedStep(start_title(deployment), _last_start_s(key, settings))


def expected_downtime(key: str, settings: Settings) -> str:
    """Say how long nobody is answered while a start takes a running one's place, and who says so.

    The old one ends within seconds; the start of the new one is what takes long.
    """
    last_s = _last_start_s(key, settings)
    if last_s is not None:
        return f"about {format_seconds(last_s)}, as its last start here took"
    similar_s = similar_start_s(settings.state_dir, key)
    if similar_s is not None:
        return f"about {format_seconds(similar_s)}, as a start of it took here on another image"
    return NOT_KNOWN


def _last_start_s(key: str, settings: Settings) -> float | None:
    known_s = load_durations(settings.state_dir, key, otherwise={})
    return sum(known_s.values()) if known_s else None


@dataclass(slots=True)
class Watch:
    """Follows one start on all of its nodes; `details` says afterwards how it went."""

    launch: Launch
    ranks: Mapping[Node, str]
    """The container of each node, by its id."""
    key: str
    """Under which the durations of such starts are remembered."""
    deadline_s: float
    plan: Plan | None = None
    """What was planned; None for containers that were made before."""
    tracker: PhaseTracker = field(init=False)
    elapsed_s: float = field(default=0.0, init=False)
    memory_curve: list[dict[str, Any]] = field(default_factory=list, init=False)
    _usual_s: Mapping[str, float] = field(init=False)
    _sampled_s: dict[str, float] = field(default_factory=dict, init=False)
    _awaited: dict[str, PlannedStep] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        on_cpu = self.plan is not None and self.plan.resolved.engine.runs_on == "cpu"
        self._usual_s = TINY_MODEL_START_S if on_cpu else SPARK_COLD_START_S
        state_dir = self.launch.settings.state_dir
        recalled_s = load_durations(state_dir, self.key, otherwise=self._usual_s)
        self.tracker = PhaseTracker(typical_s=recalled_s)

    def wait(self) -> Readiness:
        """Return when the model has answered and every rank is what was planned.

        Raises what `wait_until_answering` and `verify_rank` do; among several nodes the error is
        that of the container that ended first, with its node's name.
        """
        with GroupWatch(self.ranks, self._clock_skews_s()) as group:
            try:
                readiness = self._wait_for_head()
                for node, container_id in self.ranks.items():
                    facts = readiness.facts if node.is_here else None
                    verify_rank(node, _require_container(node, container_id), facts)
            except SparkdeployError as error:
                first = group.find_first() if len(self.ranks) > 1 else None
                if first is None:
                    raise
                raise first.error() from error
        save_durations(self.launch.settings.state_dir, self.key, readiness.phases_s)
        console.info(f"  answered after {format_seconds(readiness.startup_s)}")
        return readiness

    def details(self) -> dict[str, Any]:
        """Return what the evidence of a failure holds beside each container's own record."""
        planned = _planned_details(self.plan, self.launch.settings) if self.plan is not None else {}
        phases_s = self.tracker.durations_s(self.elapsed_s)
        return {
            **planned,
            "phases": {"reached": self.tracker.describe(), "seconds": phases_s},
            "memory_curve": self.memory_curve,
        }

    def _clock_skews_s(self) -> dict[str, float]:
        """Return how far each node's clock is from ours, where that is known."""
        facts = [node.facts for node in self.plan.observed.nodes] if self.plan is not None else []
        return {it.name: it.fabric.clock_skew_s for it in facts if it.fabric is not None}

    def _wait_for_head(self) -> Readiness:
        name, settings = self.launch.deployment, self.launch.settings
        command = f"sparkdeploy {self.launch.command}"
        head, head_id = next(item for item in self.ranks.items() if item[0].is_here)
        with (
            watching(settings.lock_dir, settings.node_name, name, command=command),
            console.step(start_title(name)) as step,
            model_of(_require_container(head, head_id), settings, head.docker) as model,
        ):
            self._awaited = self._recalled_stages()
            step.stages(list(self._awaited.values()))
            return wait_until_answering(
                head.docker,
                head_id,
                model,
                deadline_s=self.deadline_s,
                on_phase=lambda tracker, elapsed_s: self._show(step, tracker, elapsed_s),
                tracker=self.tracker,
            )

    def _show(self, step: Step, tracker: PhaseTracker, elapsed_s: float) -> None:
        """Show the phase as a stage of the step, with the bar that the log shows of it."""
        self.elapsed_s = elapsed_s
        step.guess(tracker.describe(), tracker.remaining_s(elapsed_s))
        phase = tracker.phase
        step.enter(phase.title)
        later = PHASES[PHASES.index(phase) + 1 :]
        step.stages([self._awaited[it.name] for it in later if it.name in self._awaited])
        if tracker.count is not None:
            step.count(*tracker.count, phase.unit)
        step.recent(tuple(tracker.recent))
        for node in self.ranks:
            every_s = SAMPLE_EVERY_S if node.is_here else SAMPLE_OTHERS_EVERY_S
            if elapsed_s - self._sampled_s.get(node.name, -every_s) >= every_s:
                self._sampled_s[node.name] = elapsed_s
                self._sample(node, elapsed_s, step)

    def _recalled_stages(self) -> dict[str, PlannedStep]:
        """Return the phases to come, with what they took last time; nothing is said of the rest."""
        known_s = load_durations(self.launch.settings.state_dir, self.key, otherwise={})
        names = known_s or {name for name in self._usual_s if name != "draft"}
        phases = [phase for phase in PHASES if phase.name in names]
        return {phase.name: PlannedStep(phase.title, known_s.get(phase.name)) for phase in phases}

    def _sample(self, node: Node, elapsed_s: float, step: Step) -> None:
        available = parse_meminfo(read_or_none(node, "/proc/meminfo") or "").get("MemAvailable", 0)
        sample: dict[str, Any] = {"at_s": round(elapsed_s, 2), "available_bytes": available}
        if len(self.ranks) > 1:
            sample["node"] = node.name
            step.place(node.name, f"{format_gib(available)} of memory free")
        self.memory_curve.append(sample)


def _planned_details(plan: Plan, settings: Settings) -> dict[str, Any]:
    from sparkdeploy.deploy.doctor import doctor_report  # noqa: PLC0415 - for failures only

    report: dict[str, Any]
    try:
        report = doctor_report(plan.resolved, settings, plan)
    except Exception as error:  # noqa: BLE001 - a bug in it must not keep the old one down
        report = {"not_seen": repr(error)}
    return {"plan": plan_as_dict(plan), "doctor": report}


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
        name = self.node.name
        if self.lost is not None:
            message = self.lost.message.removeprefix(f"{name}: ")
            return UnhealthyError(
                f"{name}: lost while it was waited for: {message}", hint=self.lost.hint
            )
        found = death(self.node.docker, self.container_id, self.fact)
        found.message = f"{name}: {found.message}"
        return found


class GroupWatch:
    """Looks at all ranks until one ends, which ends the rest; a context manager."""

    def __init__(self, ranks: Mapping[Node, str], clock_skews_s: Mapping[str, float]) -> None:
        self.first: End | None = None
        self._ranks = ranks
        self._clock_skews_s = clock_skews_s
        self._answered_s = dict.fromkeys(ranks, time.monotonic())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        # The wait itself sees the end of one alone.
        if len(self._ranks) > 1:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(LOST_AFTER_S)

    def find_first(self) -> End | None:
        """Return the first end, looking once more at every rank; None when all live."""
        self.__exit__()
        if self.first is None and (ends := self._ends()):
            self.first = earliest(ends)
        return self.first

    def _follow(self) -> None:
        while not self._over.wait(POLL_S):
            if ends := self._ends():
                self.first = earliest(ends)
                stop_all(self._ranks.items())
                return

    def _ends(self) -> list[End]:
        """Return how those ended that live no more, or have not answered for too long."""
        ends = []
        for node, container_id in self._ranks.items():
            try:
                fact = node.docker.find_container(container_id)
            except NodeError as error:
                if time.monotonic() - self._answered_s[node] > LOST_AFTER_S:
                    ends.append(End(node, container_id, None, lost=error))
                continue
            self._answered_s[node] = time.monotonic()
            if fact is None or fact.state not in ALIVE:
                at = parse_time(fact.finished_at) if fact is not None else None
                skew = timedelta(seconds=self._clock_skews_s.get(node.name, 0.0))
                ends.append(End(node, container_id, fact, at - skew if at is not None else None))
        return ends


def earliest(ends: Sequence[End]) -> End:
    """Return the first end; one without a time only when none has one."""
    timed = [(end.at, end) for end in ends if end.at is not None]
    return min(timed, key=lambda item: item[0])[1] if timed else ends[0]


def stop_all(ranks: Iterable[tuple[Node, str]]) -> None:
    """Stop the ranks of a deployment that lost one: they hang without it."""
    for node, container_id in ranks:
        with contextlib.suppress(NodeError):
            node.docker.stop(container_id, timeout_s=STOP_TIMEOUT_S)
