"""A start that is waited for: its progress on the console, and what is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdeploy.console import console, format_seconds
from sparkdeploy.deploy.expectation import hold
from sparkdeploy.deploy.group_watch import GroupWatch, Member
from sparkdeploy.deploy.serving import served_model
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.facts import parse_meminfo, read_or_none
from sparkdeploy.node.lock import watching
from sparkdeploy.node.node import named
from sparkdeploy.server.health import wait_until_answering
from sparkdeploy.server.phases import (
    SPARK_COLD_START_S,
    PhaseTracker,
    recall_durations,
    remember_durations,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.console import Step
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.node import Node
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings

SAMPLE_EVERY_S = 1.0
SAMPLE_OTHERS_EVERY_S = 5.0
"""A look at another node's memory takes a command over ssh."""


@dataclass(frozen=True, slots=True)
class Start:
    """Which start is waited for, and how long that may take."""

    deployment: str
    command: str
    """Who waits, for `status`: `up v2 --name main`."""
    deadline_s: float
    pace: str
    """The key under which the durations of such starts are remembered."""
    usual_s: Mapping[str, float] = field(default_factory=lambda: SPARK_COLD_START_S)


@dataclass(slots=True)
class Watch:
    """Follows one start on all of its nodes; `details` tells afterwards how it went."""

    start: Start
    parts: Mapping[Node, str]
    """The container of each node."""
    settings: Settings
    clock_skews_s: Mapping[str, float] = field(default_factory=dict)
    """How far each node's clock is from ours."""
    tracker: PhaseTracker = field(init=False)
    elapsed_s: float = field(default=0.0, init=False)
    memory_curve: list[dict[str, Any]] = field(default_factory=list, init=False)
    _sampled_s: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Expect what such a start took the last time."""
        recalled_s = recall_durations(
            self.settings.state_dir, self.start.pace, otherwise=self.start.usual_s
        )
        self.tracker = PhaseTracker(typical_s=recalled_s)

    @property
    def head(self) -> Node:
        return next(node for node in self.parts if node.is_here)

    def wait(self) -> Readiness:
        """Return when the model has answered and every part is what was planned.

        Raises what `wait_until_answering` and `hold` do; among several nodes the error is that of
        the container that ended first, with its node's name.
        """
        with GroupWatch(self._members()) as group:
            try:
                readiness = self._wait_for_head()
                for node, container_id in self.parts.items():
                    hold(node, _found(node, container_id))
            except SparkdeployError as error:
                first = group.find_first()
                if first is None:
                    raise
                raise first.error() from error
        remember_durations(self.settings.state_dir, self.start.pace, readiness.phases_s)
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
        start, settings, host = self.start, self.settings, self.head.docker
        container_id = self.parts[self.head]
        with (
            watching(
                settings.lock_dir,
                settings.node_name,
                start.deployment,
                command=f"sparkdeploy {start.command}",
            ),
            console.step(f"start of {start.deployment}") as step,
            served_model(host, container_id, settings) as model,
        ):
            return wait_until_answering(
                host,
                container_id,
                model,
                deadline_s=start.deadline_s,
                on_phase=lambda tracker, elapsed_s: self._note(step, tracker, elapsed_s),
                tracker=self.tracker,
            )

    def _note(self, step: Step, tracker: PhaseTracker, elapsed_s: float) -> None:
        self.elapsed_s = elapsed_s
        left = format_seconds(tracker.remaining_s(elapsed_s))
        step.say(f"{tracker.describe()}, about {left} left")
        for node in self.parts:
            every_s = SAMPLE_EVERY_S if node.is_here else SAMPLE_OTHERS_EVERY_S
            if elapsed_s - self._sampled_s.get(node.name, -every_s) >= every_s:
                self._sampled_s[node.name] = elapsed_s
                self._sample(node, elapsed_s)

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
