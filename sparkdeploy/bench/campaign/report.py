"""What a campaign leaves: one page and one bundle, made anew from its folder after each recipe."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparkdeploy import __version__
from sparkdeploy.bench.campaign.folder import (
    FAILED,
    NOT_RUN,
    STOPPED,
    Campaign,
    CampaignBundle,
    SharedRecipe,
    SharedStep,
    StepKind,
    shareable,
)
from sparkdeploy.bench.campaign.privacy import private_of
from sparkdeploy.bench.campaign.steps import merged
from sparkdeploy.bench.files import json_text, write_whole
from sparkdeploy.bench.quality.capture import read_capture
from sparkdeploy.bench.quality.comparison import QualityFigures, compare, newest_of_each
from sparkdeploy.bench.quality.probes import CaseResult, NeedleResult
from sparkdeploy.bench.report.page import Field, read_published, report_page
from sparkdeploy.bench.run import ISO_8601
from sparkdeploy.errors import BenchError
from sparkdeploy.image.templates import render_page
from sparkdeploy.settings import Settings, resources
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_seconds


def write_findings(
    campaign: Campaign, settings: Settings, put_back: SharedStep | None = None
) -> None:
    """Write page and bundle, both without what is private."""
    bundle = shareable(bundle_of(campaign, put_back), private_of(campaign, settings))
    write_whole(json_text(bundle, CampaignBundle), campaign.bundle)
    published = read_published(resources() / "recipes" / "facts" / "published.yaml")
    write_whole(campaign_page(bundle, published), campaign.report)


def bundle_of(campaign: Campaign, put_back: SharedStep | None = None) -> CampaignBundle:
    plan = campaign.plan
    recipes = tuple(_recipe(campaign, index) for index in range(len(plan.recipes)))
    machines = (item.run.origin.machine for item in recipes if item.run is not None)
    ended_early = ["it was ended before its time"] if campaign.is_marked(STOPPED) else []
    return CampaignBundle(
        campaign_id=campaign.path.name,
        started_at=plan.started_at,
        made_at=f"{datetime.now(UTC):{ISO_8601}}",
        sparkdeploy=__version__,
        is_quick=plan.is_quick,
        machine=next(machines, None),
        recipes=recipes,
        notes=(*ended_early, *([f"at the end: {put_back.words}"] if put_back else [])),
    )


def _recipe(campaign: Campaign, index: int) -> SharedRecipe:
    def found(kind: StepKind, form: object) -> Any:  # noqa: ANN401 - `form`
        return campaign.read(campaign.result(index, kind).name, form)

    recipe = campaign.plan.recipes[index]
    steps = (campaign.ended(index, kind) or SharedStep(kind, NOT_RUN) for kind in recipe.kinds)
    return SharedRecipe(
        name=recipe.name,
        title=recipe.title,
        steps=tuple(steps),
        run=merged(campaign, index),
        quality=_quality(campaign, index),
        needles=found(StepKind.NEEDLE, tuple[NeedleResult, ...]) or (),
        tools=found(StepKind.TOOLS, tuple[CaseResult, ...]) or (),
        tuning=found(StepKind.TUNE, str) or "",
    )


def _quality(campaign: Campaign, index: int) -> QualityFigures | None:
    """Hold a recipe against the first that was captured; None for that one, and without one."""
    recipes = campaign.plan.recipes
    paths = [campaign.result(number, StepKind.QUALITY) for number in range(len(recipes))]
    first = next((number for number, path in enumerate(paths) if path.exists()), None)
    if first is None or first == index or not paths[index].exists():
        return None
    try:
        figures = compare(read_capture(paths[first]), read_capture(paths[index]))
    except BenchError as error:
        console.warn(error.message)
        return None
    return replace(figures, against=recipes[first].name)


def campaign_page(bundle: CampaignBundle, field: Field) -> str:
    """Return one HTML page that loads nothing; a campaign without a run has its steps alone."""
    if not bundle.runs:
        return _rendered("alone.html.j2", bundle)
    page = report_page(
        bundle.runs,
        field,
        made_at=bundle.made_at,
        version=bundle.sparkdeploy,
        quality=newest_of_each(bundle.quality_results(), bundle.runs),
    )
    before, mark, after = page.rpartition("<footer")
    return f"{before}{_rendered('steps.html.j2', bundle)}{mark}{after}"


def step_lines(recipes: Sequence[SharedRecipe]) -> Iterator[str]:
    for recipe in recipes:
        yield f"{recipe.name}: {recipe.title}"
        for step in recipe.steps:
            took = f" ({format_seconds(step.duration_s)})" if step.duration_s else ""
            yield f"  {step.step:8} {step.ending:8}{took}{f'  {step.words}' if step.words else ''}"


def failed_steps(recipe: SharedRecipe) -> tuple[str, ...]:
    """Return what failed, in words; `doctor` only tells."""
    failed = [step for step in recipe.steps if step.ending == FAILED]
    return tuple(f"{step.step}: {step.words}" for step in failed if step.step != StepKind.DOCTOR)


def _rendered(template: str, bundle: CampaignBundle) -> str:
    return render_page(
        Path(__file__).parent,
        template,
        bundle=bundle,
        took=format_seconds,
        tunings=[recipe for recipe in bundle.recipes if recipe.tuning],
    )
