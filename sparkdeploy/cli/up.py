"""`up`: deploy a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.cli.options import (
    ClusterOption,
    JsonOption,
    KnownBadOption,
    NameOption,
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

if TYPE_CHECKING:
    from sparkdeploy.commands.drafting import Request
    from sparkdeploy.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
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
    request = requested(recipe, assignments, name=name, public=public, settings=settings)
    if dry_run:
        _print_plan(request, settings, cluster=cluster, as_json=as_json)
        return
    extent = Extent.PREPARE if prepare else Extent.DETACH if detach else Extent.ANSWER
    if cluster:
        from sparkdeploy.commands.cluster_deploy import up as deploy
    else:
        from sparkdeploy.commands.up import up as deploy
    deploy_and_print(
        request,
        settings,
        extent=extent,
        consent=(lambda _question: True) if yes else console.confirm,
        handover=Handover(keep, PageCache.DROP if drop_page_cache else PageCache.ASK),
        as_json=as_json,
        deploy=deploy,
    )


def _print_plan(request: Request, settings: Settings, *, cluster: bool, as_json: bool) -> None:
    if cluster:
        from sparkdeploy.cli.cluster import print_plan as print_cluster_plan

        print_cluster_plan(request, settings, as_json=as_json)
        return
    from sparkdeploy.cli.printing import print_plan
    from sparkdeploy.commands.planning import plan_for

    print_plan(plan_for(request, settings), None, as_json=as_json)
