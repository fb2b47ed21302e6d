"""The campaign's page: the report of its runs, and a table of what was done and what failed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.bench.campaign.bundle import FAILED
from sparkdeploy.bench.campaign.folder import StepKind
from sparkdeploy.bench.quality.kept import newest_of_each
from sparkdeploy.bench.record import Estimate
from sparkdeploy.bench.report.page import report_page
from sparkdeploy.image.templates import render_page
from sparkdeploy.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.campaign.bundle import CampaignBundle, SharedRecipe
    from sparkdeploy.bench.report.published import Field

FRAGMENT, ALONE = "steps.html.j2", "alone.html.j2"


def campaign_page(bundle: CampaignBundle, field: Field) -> str:
    """Return one HTML page that loads nothing; a campaign without a run has its steps alone."""
    if not bundle.runs:
        return _rendered(ALONE, bundle)
    page = report_page(
        bundle.runs,
        field,
        made_at=bundle.made_at,
        version=bundle.sparkdeploy,
        quality=newest_of_each(bundle.quality_results(), bundle.runs),
    )
    before, mark, after = page.rpartition("<footer")
    return f"{before}{_rendered(FRAGMENT, bundle)}{mark}{after}"


def step_lines(recipes: Sequence[SharedRecipe]) -> Iterator[str]:
    """Yield what was done with each recipe, for a terminal."""
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
        said=list(_said(bundle)),
        took=format_seconds,
        tunings=[recipe for recipe in bundle.recipes if recipe.tuning],
    )


def _said(bundle: CampaignBundle) -> Iterator[tuple[str, str, str]]:
    """Yield what models said: quality beside the first, needles, tool calls."""
    for recipe in bundle.recipes:
        if recipe.quality is not None:
            found = recipe.quality
            yield (
                recipe.name,
                f"quality beside {found.against}",
                f"top-1 agreement {found.top1_agreement.text('.2%')}; change of perplexity "
                f"{found.perplexity_change.text('+.2%')}; mean KL at least "
                f"{Estimate(found.mean_kl_nats.value).text('.5f')} and at most "
                f"{Estimate(found.most_mean_kl_nats).text('.5f')} nats; "
                f"{found.positions} positions",
            )
        if recipe.needles:
            count = sum(item.is_found for item in recipe.needles)
            longest = max(item.length for item in recipe.needles)
            yield (
                recipe.name,
                "needles",
                f"found {count} of {len(recipe.needles)}, up to {longest} tokens",
            )
        if recipe.tools:
            wrong = [f"{item.name}: {item.problem}" for item in recipe.tools if item.problem]
            right = f"right {len(recipe.tools) - len(wrong)} of {len(recipe.tools)}"
            yield recipe.name, "tool calls", "; ".join([right, *wrong])
