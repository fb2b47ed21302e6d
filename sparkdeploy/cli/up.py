"""`up`: deploy a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkdeploy.cli.options import (
    ClusterOption,
    JsonOption,
    KnownBadOption,
    NameOption,
    OnOption,
    PageCacheOption,
    PublicOption,
    RecipeArgument,
    SetOption,
    UnsafeOption,
    YesOption,
    requested,
    with_consent,
)
from sparkdeploy.console import console


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    recipe: RecipeArgument = None,
    assignments: SetOption = None,
    name: NameOption = "main",
    public: PublicOption = False,
    cluster: ClusterOption = False,
    solo: Annotated[bool, typer.Option("--solo", help="Deploy on this machine alone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, do nothing.")] = False,
    prepare: Annotated[bool, typer.Option("--prepare", help="Do all but the start.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return after the start.")] = False,
    allow_known_bad: KnownBadOption = False,
    allow_unsafe: UnsafeOption = False,
    keep: Annotated[
        int, typer.Option(min=0, metavar="N", help="Earlier containers to keep for `rollback`.")
    ] = 1,
    drop_page_cache: PageCacheOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Deploy a recipe: images, checkpoint, container, and the model's first answer."""
    from sparkdeploy.cli.outcome import deploy_and_print
    from sparkdeploy.commands.up import Extent, Handover
    from sparkdeploy.deploy.memory import PageCache
    from sparkdeploy.errors import UsageError
    from sparkdeploy.settings import load_settings

    if sum((prepare, detach, dry_run)) > 1:
        raise UsageError("--dry-run, --prepare and --detach exclude each other")
    if solo and cluster:
        raise UsageError("--solo and --cluster exclude each other")
    assignments = with_consent(assignments, known_bad=allow_known_bad, unsafe=allow_unsafe)
    settings = load_settings()
    request = requested(
        recipe, assignments, name=name, public=public, settings=settings, cluster=cluster
    )
    if dry_run:
        from sparkdeploy.cli.printing import print_plan, require_no_problems
        from sparkdeploy.commands.request import plan_for

        plan = plan_for(request, settings)
        print_plan(plan, None, as_json=as_json)
        require_no_problems(plan)
        return
    extent = Extent.PREPARE if prepare else Extent.DETACH if detach else Extent.ANSWER
    deploy_and_print(
        request,
        settings,
        extent=extent,
        consent=(lambda _question: True) if yes else console.confirm,
        handover=Handover(keep, PageCache.DROP if drop_page_cache else PageCache.ASK),
        as_json=as_json,
    )
