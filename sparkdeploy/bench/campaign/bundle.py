"""One file with all that a campaign found, ready to be posted: versioned, without secrets."""

from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy.bench.campaign.privacy import Private
from sparkdeploy.bench.files import adapter_of, checked, json_text, read_content
from sparkdeploy.bench.quality.comparison import (
    QualityFigures,
    QualityResult,
    Thresholds,
    judged,
    served_by,
)
from sparkdeploy.bench.quality.needle import NeedleResult
from sparkdeploy.bench.quality.tool_calls import CaseResult
from sparkdeploy.bench.record import MachineOrigin, Run

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.

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
        served = {recipe.name: served_by(recipe.run) for recipe in self.recipes if recipe.run}
        return tuple(
            judged(found, beside, own, self.made_at, Thresholds())
            for recipe in self.recipes
            if (found := recipe.quality) is not None
            and (own := served.get(recipe.name)) is not None
            and (beside := served.get(found.against)) is not None
            and beside != own
        )


def shareable(bundle: CampaignBundle, private: Private) -> CampaignBundle:
    """Return the bundle without an address, a deployment's name, or anything that is private.

    BenchError when what is left is no bundle: a machine that is called like a figure.
    """
    recipes = tuple(
        replace(it, run=replace(it.run, origin=replace(it.run.origin, url="", deployment=None)))
        if it.run is not None
        else it
        for it in bundle.recipes
    )
    content = adapter_of(CampaignBundle).dump_python(replace(bundle, recipes=recipes), mode="json")
    cleaned: CampaignBundle = checked(private.without(content), CampaignBundle, Path("the bundle"))
    return cleaned


def bundle_text(bundle: CampaignBundle) -> str:
    return json_text(bundle, CampaignBundle)


def read_bundle(path: Path) -> CampaignBundle:
    bundle: CampaignBundle = checked(read_content(path, "campaign's bundle"), CampaignBundle, path)
    return bundle
