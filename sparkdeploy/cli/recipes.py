"""`list`, `show` and `plan`: what there is and what would be done."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.cli.options import (
    ClusterOption,
    JsonOption,
    KnownBadOption,
    NameOption,
    OnOption,
    PublicOption,
    RecipeArgument,
    SetOption,
    UnsafeOption,
    requested,
    with_consent,
)
from sparkdeploy.console import console

HardwareOption = Annotated[
    str | None,
    typer.Option(help="Say what fits and how fast it is on: spark, h200, here."),
]
HtmlOption = Annotated[
    Path | None, typer.Option(help="Write the estimate as a page with a picture.")
]
HeadersOption = Annotated[
    bool,
    typer.Option("--headers", help="Estimate from the model's headers on the hub (some MB)."),
]


class Shown(StrEnum):
    """What `plan --show` prints alone, in full."""

    DOCKERFILE = "dockerfile"
    ARGS = "args"
    CONTAINER = "container"


def register(app: typer.Typer) -> None:
    app.command("list")(list_recipes)
    app.command("show")(show_recipe)
    app.command("plan")(plan_recipe)


def list_recipes(as_json: JsonOption = False) -> None:
    """List the recipes and engines."""
    from sparkdeploy.recipe import report
    from sparkdeploy.recipe.load import library
    from sparkdeploy.settings import load_settings

    shelf = library(load_settings())
    recipes, engines = report.recipe_rows(shelf), report.engine_rows(shelf)
    if as_json:
        console.answer_json({"recipes": recipes, "engines": engines})
        return
    for line in report.list_lines(recipes, engines):
        console.answer(line)


def show_recipe(
    recipe: RecipeArgument = None,
    assignments: SetOption = None,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="Memory and KV cache on this machine instead.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="With --capacity: of one of the recipe's nodes.")
    ] = False,
    allow_unsafe: UnsafeOption = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Show a recipe with everything it inherits, and where each value was written."""
    if cluster and not capacity:
        from sparkdeploy.errors import UsageError

        raise UsageError(
            "`show --cluster` is about --capacity",
            hint="a recipe is the same on one node and on several: `sparkdeploy show`",
        )
    assignments = with_consent(assignments, known_bad=False, unsafe=allow_unsafe)
    if capacity:
        from sparkdeploy.cli.printing import print_capacity

        print_capacity(recipe, assignments, cluster=cluster, as_json=as_json)
        return
    from sparkdeploy.commands.request import Request, resolve
    from sparkdeploy.recipe import report
    from sparkdeploy.settings import load_settings

    settings = load_settings()
    request = Request(recipe or settings.default_recipe, tuple(assignments or ()))
    resolved = resolve(request, settings)
    if as_json:
        console.answer_json(resolved.recipe.model_dump(by_alias=True, mode="json"))
        return
    for line in report.origin_lines(resolved):
        console.answer(line)


def plan_recipe(
    recipe: RecipeArgument = None,
    assignments: SetOption = None,
    name: NameOption = "main",
    public: PublicOption = False,
    cluster: ClusterOption = False,
    show: Annotated[
        Shown | None,
        typer.Option(help="Print Dockerfiles, vLLM's arguments or the container in full."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 9 when there is work.")] = False,
    hardware: HardwareOption = None,
    html: HtmlOption = None,
    headers: HeadersOption = False,
    allow_known_bad: KnownBadOption = False,
    allow_unsafe: UnsafeOption = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Say what `up` would do, and do nothing; with --hardware, what would fit and how fast."""
    from sparkdeploy.settings import load_settings

    assignments = with_consent(assignments, known_bad=allow_known_bad, unsafe=allow_unsafe)
    if hardware is not None or html is not None or headers:
        from sparkdeploy.cli.printing import print_outlook

        _refuse_parts_of_a_plan(show=show, check=check)
        print_outlook(
            recipe,
            assignments,
            hardware=hardware,
            html=html,
            headers=headers,
            cluster=cluster,
            as_json=as_json,
        )
        return
    from sparkdeploy.cli.printing import print_plan, require_no_problems
    from sparkdeploy.commands.request import plan_for
    from sparkdeploy.errors import ChangesPendingError

    settings = load_settings()
    request = requested(
        recipe, assignments, name=name, public=public, settings=settings, cluster=cluster
    )
    plan = plan_for(request, settings)
    print_plan(plan, show.value if show else None, as_json=as_json)
    if check and plan.has_work:
        raise ChangesPendingError("the plan has work to do", hint="run `sparkdeploy up`")
    if show is None:
        require_no_problems(plan)


def _refuse_parts_of_a_plan(*, show: Shown | None, check: bool) -> None:
    """An estimate has no steps to show or to check."""
    if show is not None or check:
        from sparkdeploy.errors import UsageError

        raise UsageError(
            "--hardware, --html and --headers estimate; --show and --check are about the plan",
            hint="run `sparkdeploy plan` once with each",
        )
