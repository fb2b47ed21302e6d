"""One file with all that a campaign found, ready to be posted: versioned, bounded, no secret."""

from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy.bench.campaign.privacy import Private
from sparkdeploy.bench.files import adapter_of, checked, read_content
from sparkdeploy.bench.quality.comparison import SharedQuality, Thresholds
from sparkdeploy.bench.quality.kept import QualityResult, judged, served_by
from sparkdeploy.bench.quality.needle import NeedleResult
from sparkdeploy.bench.quality.tool_calls import CaseResult
from sparkdeploy.bench.record import Cell, MachineOrigin, Run, SuiteResult
from sparkdeploy.errors import BenchError
from sparkdeploy.terminal.safe_text import visible_json

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.

SCHEMA_VERSION = 1
KIND = "sparkdeploy campaign"
SCHEMA_FILE = "docs/bench-bundle.schema.json"
MAX_BYTES = 4 << 20
"""A recipe takes about 100 KiB, most of it single requests."""
MAX_TEXT = 4000
"""Characters that are kept of a tool's output: its end."""
NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class SharedStep:
    step: str
    ending: str
    """done, failed, skipped, or not run: the campaign was stopped."""
    words: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedRecipe:
    name: str
    title: str
    steps: tuple[SharedStep, ...] = ()
    run: Run | None = None
    quality: SharedQuality | None = None
    """None for the recipe that the others are held against, and where it could not be."""
    needles: tuple[NeedleResult, ...] = ()
    tools: tuple[CaseResult, ...] = ()
    tuning: str = ""
    """The end of what the tuning of kernels printed."""


@dataclass(frozen=True, slots=True)
class CampaignBundle:
    campaign_id: str
    started_at: str
    """ISO 8601, UTC."""
    made_at: str
    sparkdeploy: str
    is_quick: bool
    machine: MachineOrigin | None
    recipes: tuple[SharedRecipe, ...]
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    kind: str = KIND
    schema: int = SCHEMA_VERSION

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(recipe.run for recipe in self.recipes if recipe.run is not None)

    def quality_results(self) -> tuple[QualityResult, ...]:
        """Return what the gate says of each recipe with a run, beside one with a run."""
        served = {recipe.name: served_by(recipe.run) for recipe in self.recipes if recipe.run}
        return tuple(
            judged(found, (beside, own), self.made_at, Thresholds())
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
        replace(recipe, run=_without_place(recipe.run) if recipe.run is not None else None)
        for recipe in bundle.recipes
    )
    content = adapter_of(CampaignBundle).dump_python(replace(bundle, recipes=recipes), mode="json")
    cleaned: CampaignBundle = checked(private.without(content), CampaignBundle, Path("the bundle"))
    return cleaned


def bundle_text(bundle: CampaignBundle) -> str:
    """Return the file's text; where it were too long, single requests are left out, and said.

    BenchError when even that is too long.
    """
    text = _text(bundle)
    if len(text.encode()) > MAX_BYTES:
        note = "single requests are left out: the file was too long"
        recipes = tuple(
            replace(recipe, run=_without_samples(recipe.run) if recipe.run is not None else None)
            for recipe in bundle.recipes
        )
        text = _text(replace(bundle, recipes=recipes, notes=(*bundle.notes, note)))
    if len(text.encode()) > MAX_BYTES:
        raise BenchError(f"the bundle is longer than {MAX_BYTES >> 20} MiB")
    return text


def read_bundle(path: Path) -> CampaignBundle:
    """Read strictly; within a schema fields may be added, and unknown ones are passed over.

    BenchError says what is wrong with a file that is none, too long or of a newer schema.
    """
    content = read_content(path, "campaign's bundle")
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise BenchError(f"{path} is no campaign's bundle")
    if path.stat().st_size > MAX_BYTES:
        raise BenchError(f"{path} is longer than {MAX_BYTES >> 20} MiB, and no bundle is")
    version = content.get("schema")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise BenchError(
            f"{path} has schema {version}, and this sparkdeploy reads up to {SCHEMA_VERSION}",
            hint="update sparkdeploy",
        )
    try:
        bundle: CampaignBundle = checked(content, CampaignBundle, path)
    except BenchError as error:
        raise BenchError(error.message, hint=f"{SCHEMA_FILE} says what is in a bundle") from error
    return bundle


def _text(bundle: CampaignBundle) -> str:
    return visible_json(adapter_of(CampaignBundle).dump_json(bundle, indent=1).decode()) + "\n"


def _without_place(run: Run) -> Run:
    return replace(run, origin=replace(run.origin, url="", deployment=None))


def _without_samples(run: Run) -> Run:
    def shorter(cell: Cell) -> Cell:
        return replace(cell, samples=())

    def suite(item: SuiteResult) -> SuiteResult:
        return replace(item, cells=tuple(map(shorter, item.cells)))

    return replace(run, suites=tuple(map(suite, run.suites)))
