"""A campaign's folder, which is its state, and the bundle: one file of all that it found.

The folder has the plan and one file for each step that has ended. The bundle is made to be posted:
versioned, and without secrets.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sparkdeploy.bench.campaign.privacy import Private
from sparkdeploy.bench.files import (
    adapter_of,
    checked,
    read_content,
    read_versioned,
    write_private_json,
)
from sparkdeploy.bench.quality.capture import served_of
from sparkdeploy.bench.quality.comparison import (
    QualityFigures,
    QualityResult,
    Thresholds,
    judged,
)
from sparkdeploy.bench.quality.probes import CaseResult, NeedleResult
from sparkdeploy.bench.record import MachineOrigin, Run

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.

PLAN_SCHEMA = 1
SCHEMA_VERSION = 1
KIND = "sparkdeploy campaign"
MAX_TEXT = 4000
"""Characters that are kept of a tool's output: its end."""
DONE, FAILED, SKIPPED, NOT_RUN = "done", "failed", "skipped", "not run"
"""How a step ended. Skipped: the recipe does not serve; not run: the campaign was stopped."""


@dataclass(frozen=True, slots=True)
class SharedStep:
    step: str
    ending: str
    words: str = ""
    duration_s: float = 0.0


PLAN, BEFORE = "plan.json", "before.json"
HAS_SERVED, STOPPED = "has-served", "stopped"
"""Marks: an `up` was begun, so that something has to be put back; the user ended it early."""


class StepKind(StrEnum):
    """What is done with one recipe, in this order; `tune` comes after all recipes' other steps."""

    DOCTOR = "doctor"
    UP = "up"
    FIVE = "five"
    DECODE = "decode"
    LOAD = "load"
    AGENTS = "agents"
    QUALITY = "quality"
    NEEDLE = "needle"
    TOOLS = "tools"
    TUNE = "tune"


SUITES = (StepKind.FIVE, StepKind.DECODE, StepKind.LOAD, StepKind.AGENTS)
"""Steps that are suites of `bench` under the same names."""
SERVED = (*SUITES, StepKind.QUALITY, StepKind.NEEDLE, StepKind.TOOLS, StepKind.TUNE)


@dataclass(frozen=True, slots=True)
class PlannedRecipe:
    wanted: str
    """As it was typed; a path is absolute."""
    name: str
    """What the report calls it; no two of a campaign are the same."""
    title: str
    kinds: tuple[StepKind, ...]


@dataclass(frozen=True, slots=True)
class Before:
    """What served under the name before the first `up`, in a file of this user's alone."""

    wanted: str
    values: Mapping[str, object]
    """The whole recipe; of `serve.env` the names alone."""
    env: Mapping[str, str] = field(default_factory=dict)
    exposure: str = "loopback"


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    started_at: str
    deployment: str
    recipes: tuple[PlannedRecipe, ...]
    assignments: tuple[str, ...] = ()
    """What `--set` and the options of consent override in each recipe."""
    is_quick: bool = False
    schema: int = PLAN_SCHEMA


@dataclass(frozen=True, slots=True)
class Campaign:
    """Any kill may come between two files; a step without one is done again."""

    path: Path
    plan: CampaignPlan

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def bundle(self) -> Path:
        return self.path / "bundle.json"

    def begin(self, before: Before | None) -> None:
        """Write the plan, then what served before: from then on the campaign is not over."""
        self.write(PLAN, self.plan, CampaignPlan)
        self.write(BEFORE, before, Before | None)

    @property
    def before(self) -> Before | None:
        found: Before | None = self.read(BEFORE, Before | None)
        return found

    @property
    def is_over(self) -> bool:
        return not (self.path / BEFORE).exists()

    def finish(self) -> None:
        """Forget what served before, and with it the values of its variables."""
        (self.path / BEFORE).unlink()

    def mark(self, name: str) -> None:
        self.write(name, True, bool)

    def is_marked(self, name: str) -> bool:
        return (self.path / name).exists()

    def steps(self) -> Iterator[tuple[int, StepKind]]:
        """Yield recipe and step in their order.

        Tuned kernels are used by the next start under the same name, so tuning waits until all is
        measured; the recipe that served last is tuned first, without a start.
        """
        recipes = [*enumerate(self.plan.recipes)]
        for index, recipe in recipes:
            yield from ((index, kind) for kind in recipe.kinds if kind is not StepKind.TUNE)
        for index, recipe in reversed(recipes):
            yield from ((index, kind) for kind in recipe.kinds if kind is StepKind.TUNE)

    def pending(self) -> Iterator[tuple[int, StepKind]]:
        """Yield each step that has not ended by the time it is reached."""
        yield from (step for step in self.steps() if self.ended(*step) is None)

    def ended(self, recipe: int, kind: StepKind) -> SharedStep | None:
        found: SharedStep | None = self.read(_ending(recipe, kind), SharedStep)
        return found

    def end(self, recipe: int, step: SharedStep) -> None:
        self.write(_ending(recipe, step.step), step, SharedStep)

    def result(self, recipe: int, kind: StepKind) -> Path:
        return self.path / f"{recipe + 1:02}-{kind}.json"

    def read(self, name: str, form: Any) -> Any:  # noqa: ANN401 - `form`
        path = self.path / name
        if not path.exists():
            return None
        return checked(read_content(path, "file of a campaign"), form, path)

    def write(self, name: str, value: object, form: Any) -> None:  # noqa: ANN401 - a type
        write_private_json(self.path / name, value, form, is_durable=True)


def _ending(recipe: int, step: str) -> str:
    return f"{recipe + 1:02}-{step}.ended.json"


def campaigns_below(state_dir: Path) -> Path:
    return state_dir / "campaigns"


def unfinished(state_dir: Path) -> Campaign | None:
    """Return the newest campaign that is not over; BenchError when its plan cannot be read."""
    for path in sorted(campaigns_below(state_dir).glob(f"*/{BEFORE}"), reverse=True):
        plan = read_versioned(path.with_name(PLAN), CampaignPlan, "campaign", PLAN_SCHEMA)
        return Campaign(path.parent, plan)
    return None


@dataclass(frozen=True, slots=True)
class SharedRecipe:
    name: str
    title: str
    steps: tuple[SharedStep, ...] = ()
    run: Run | None = None
    quality: QualityFigures | None = None
    """None for the recipe that the others are held against, and where it could not be."""
    needles: tuple[NeedleResult, ...] = ()
    tools: tuple[CaseResult, ...] = ()
    tuning: str = ""


@dataclass(frozen=True, slots=True)
class CampaignBundle:
    campaign_id: str
    started_at: str
    made_at: str
    sparkdeploy: str
    is_quick: bool
    machine: MachineOrigin | None
    recipes: tuple[SharedRecipe, ...]
    notes: tuple[str, ...] = ()
    kind: str = KIND
    schema: int = SCHEMA_VERSION

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(recipe.run for recipe in self.recipes if recipe.run is not None)

    def quality_results(self) -> tuple[QualityResult, ...]:
        """Return what the gate says of each recipe with a run, beside one with a run."""
        served = {
            recipe.name: served_of(recipe.run.origin) for recipe in self.recipes if recipe.run
        }
        return tuple(
            judged(found, beside, own, self.made_at, Thresholds())
            for recipe in self.recipes
            if (found := recipe.quality) is not None
            and (own := served.get(recipe.name)) is not None
            and (beside := served.get(found.against)) is not None
            and beside != own
        )


def shareable(bundle: CampaignBundle, private: Private) -> CampaignBundle:
    """Return the bundle without anything private; BenchError when what is left is no bundle."""
    content = adapter_of(CampaignBundle).dump_python(bundle, mode="json")
    for recipe in content["recipes"]:
        if recipe["run"] is not None:
            recipe["run"]["origin"] |= {"url": "", "deployment": None}
    cleaned: CampaignBundle = checked(private.without(content), CampaignBundle, Path("the bundle"))
    return cleaned


def read_bundle(path: Path) -> CampaignBundle:
    bundle: CampaignBundle = checked(read_content(path, "campaign's bundle"), CampaignBundle, path)
    return bundle
