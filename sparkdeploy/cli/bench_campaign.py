"""`bench campaign`: what a Spark owner starts in the evening."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.cli.options import (
    JsonOption,
    KnownBadOption,
    NameOption,
    SetOption,
    UnsafeOption,
    YesOption,
    current_settings,
    overrides,
)
from sparkdeploy.cli.printing import answer
from sparkdeploy.errors import BenchError, UsageError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.bench.campaign.folder import Campaign
    from sparkdeploy.settings import Settings

BASELINE = "baseline"


def campaign(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names or files; baseline and the configured default when left out.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One round, one prompt a suite, two texts, one needle."),
    ] = False,
    assignments: SetOption = None,
    name: NameOption = "main",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the campaign that is not over.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="End it, and put back what served before.")
    ] = False,
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve and measure recipes one after the other, to one page.

    The same command again goes on where it was. What served before is put back at the end.
    """
    from sparkdeploy.bench.campaign import run as stage
    from sparkdeploy.node.container import refuse_no_name

    settings = current_settings()
    consent = (lambda _question: True) if yes else console.confirm
    assignments = overrides(assignments, known_bad=known_bad, unsafe=unsafe)
    if resume or stop:
        if recipes or assignments or quick or (resume and stop):
            raise UsageError("--resume and --stop take the campaign as it was begun, one of them")
        _tell(stage.run_campaign(None, settings, consent, is_stopped=stop), as_json=as_json)
        return
    refuse_no_name(name)
    wanted = stage.WantedCampaign(
        recipes=_from_anywhere(recipes, settings),
        assignments=tuple(assignments),
        deployment=name,
        is_quick=quick,
    )
    _tell(stage.run_campaign(wanted, settings, consent), as_json=as_json)


def _from_anywhere(recipes: list[str] | None, settings: Settings) -> tuple[str, ...]:
    from sparkdeploy.deploy.request import from_anywhere

    wanted = recipes or [BASELINE, settings.default_recipe]
    return tuple(dict.fromkeys(from_anywhere(recipe, settings) for recipe in wanted))


def _tell(campaign: Campaign, *, as_json: bool) -> None:
    from sparkdeploy.bench.campaign.folder import read_bundle
    from sparkdeploy.bench.campaign.report import failed_steps, step_lines

    bundle = read_bundle(campaign.bundle)
    failed = {recipe.name: failed_steps(recipe) for recipe in bundle.recipes}
    failed = {name: words for name, words in failed.items() if words}
    lines = [
        *step_lines(bundle.recipes),
        f"report: {campaign.report}",
        f"bundle: {campaign.bundle}; it holds no key, no address and no name of yours: post it",
    ]
    content = {"report": str(campaign.report), "bundle": str(campaign.bundle), "failed": failed}
    answer(lines, content, as_json=as_json)
    if failed:
        first, words = next(iter(failed.items()))
        raise BenchError(
            f"{len(failed)} of {len(bundle.recipes)} recipes did not get through; "
            f"{first}: {words[0]}",
            hint=f"what was measured: {campaign.report}",
        )
