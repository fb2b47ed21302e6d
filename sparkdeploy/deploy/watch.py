"""A start that is waited for: its progress on the console, and what is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdeploy.console import console, format_seconds
from sparkdeploy.deploy.serving import served_model
from sparkdeploy.node.facts import read_meminfo
from sparkdeploy.node.lock import watching
from sparkdeploy.server import durations
from sparkdeploy.server.health import wait_until_answering
from sparkdeploy.server.phases import SPARK_COLD_START_S, PhaseTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.console import Step
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings

SAMPLE_EVERY_S = 1.0


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
    """Follows one start; `details` tells afterwards how it went."""

    start: Start
    host: DockerHost
    settings: Settings
    tracker: PhaseTracker = field(init=False)
    elapsed_s: float = field(default=0.0, init=False)
    memory_curve: list[dict[str, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Expect what such a start took the last time."""
        recalled_s = durations.recall(
            self.settings.state_dir, self.start.pace, otherwise=self.start.usual_s
        )
        self.tracker = PhaseTracker(typical_s=recalled_s)

    def wait(self, container_id: str) -> Readiness:
        """Return when the model has answered; raises what `wait_until_answering` does."""
        start, settings = self.start, self.settings
        with (
            watching(
                settings.lock_dir,
                settings.node_name,
                start.deployment,
                command=f"sparkdeploy {start.command}",
            ),
            console.step(f"start of {start.deployment}") as step,
            served_model(self.host, container_id, settings) as model,
        ):
            readiness = wait_until_answering(
                self.host,
                container_id,
                model,
                deadline_s=start.deadline_s,
                on_phase=lambda tracker, elapsed_s: self._note(step, tracker, elapsed_s),
                tracker=self.tracker,
            )
        durations.remember(settings.state_dir, start.pace, readiness.phases_s)
        console.info(f"  answered after {format_seconds(readiness.startup_s)}")
        return readiness

    def details(self) -> dict[str, Any]:
        """Return what the evidence of a failure holds beside the container's own record."""
        phases_s = self.tracker.durations_s(self.elapsed_s)
        return {
            "phases": {"reached": self.tracker.describe(), "seconds": phases_s},
            "memory_curve": self.memory_curve,
        }

    def _note(self, step: Step, tracker: PhaseTracker, elapsed_s: float) -> None:
        self.elapsed_s = elapsed_s
        left = format_seconds(tracker.remaining_s(elapsed_s))
        step.say(f"{tracker.describe()}, about {left} left")
        last_s = self.memory_curve[-1]["at_s"] if self.memory_curve else -SAMPLE_EVERY_S
        if elapsed_s - last_s >= SAMPLE_EVERY_S:
            meminfo = read_meminfo()
            available = meminfo.get("MemAvailable", 0)
            self.memory_curve.append({"at_s": round(elapsed_s, 2), "available_bytes": available})
