"""`list`, `show`, `plan` and `doctor`: what there is, what would be done, what may go wrong."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sparkdeploy.checks.report import require_none
from sparkdeploy.cli import options
from sparkdeploy.cli.options import answer, print_plan
from sparkdeploy.errors import ChangesPendingError, NodeError, UsageError
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.style import line_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.authoring.outlook import Outlook
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.terminal.tables import Block

VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="With --hardware: every table.")
]
ShowOption = Annotated[
    Literal["dockerfile", "args", "container", "mods"] | None,
    typer.Option(help="Print Dockerfiles, vLLM's or docker's command, or mods, in full."),
]
CheckOption = Annotated[
    bool, typer.Option("--check", help="Exit 9 when there is work, 4 when `up` would refuse.")
]
HeadersOption = Annotated[
    bool, typer.Option("--headers", help="Estimate from the model's headers on the hub (some MB).")
]


def list_recipes(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="Those alone with all these words.")
    ] = None,
    fits: options.FitsOption = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, metavar="N", help="Those for that many alone.")
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="All recipes, with their whole titles, and engines.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """List the recipes that fit. With --fits, how fast on another machine.

    A machine without a GPU lists what fits a Spark. With words or --nodes: ours, yours and those
    of sources with all the words in their name, title, model or drafter, also those that do not
    fit.
    """
    if words or nodes is not None:
        _search(words or [], nodes, fits, as_json=as_json)
        return
    from sparkdeploy.authoring.fits import fit_words, fitting_lines, fitting_rows
    from sparkdeploy.authoring.outlook import ground_for, here_or_spark
    from sparkdeploy.estimate.hardware import HERE
    from sparkdeploy.recipe import report
    from sparkdeploy.recipe.load import load_all

    judged = fits or (HERE if as_json else here_or_spark())
    ground = ground_for(judged, options.current_settings())
    known = ground.recipe_library
    loaded = load_all(known)
    rows = fitting_rows(ground, loaded)
    if fits is not None:
        answer(fitting_lines(rows, fits), rows, as_json=as_json)
        return
    verdicts, default = fit_words(rows), ground.settings.default_recipe
    recipes = list(report.recipe_rows(loaded, known))
    engines = list(report.engine_rows(known))
    fitting = [{**row, "fits_here": verdicts.get(row["name"], "?")} for row in recipes]
    content = {"default": default, "recipes": fitting, "engines": engines}
    where = "here" if judged == HERE else f"on {ground.reached.hardware.title}; no GPU is here"
    lines = report.short_lines(recipes, verdicts, default, where)
    if show_all:
        lines = report.list_lines(recipes, engines, verdicts, default, where)
    answer(lines, content, as_json=as_json)


def _search(words: list[str], nodes: int | None, fits: str | None, *, as_json: bool) -> None:
    from sparkdeploy.authoring.source.search import search, table_of, with_fits

    hits = search(words, nodes, options.current_settings())
    found = list(hits if fits is None else with_fits(hits, fits))
    table = table_of(found, names_machines=nodes is not None)
    answer([table], [hit.as_dict() for hit in found], as_json=as_json)
    count = "1 recipe" if len(found) == 1 else f"{len(found)} recipes"
    console.info(f"{count}; `sparkdeploy plan NAME` says what each needs")
    if any(hit.row.consents for hit in found):
        console.info("! needs your consent: `plan NAME` says to what, --allow-unsafe gives it")


def new(
    name: Annotated[str, typer.Argument(help="What the recipe is to be called.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="ORG/NAME[@REVISION] on the hub, or a folder."
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option("--from", metavar="RECIPE", help="The recipe that it changes.")
    ] = None,
    destination: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the recipe there, your recipes folder otherwise; `-` prints it alone.",
        ),
    ] = None,
    _offline: options.OfflineOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Write a recipe for a model, or one that changes another."""
    from sparkdeploy.authoring.new_recipe import new_recipe

    made = new_recipe(name, model, base, destination, options.current_settings())
    content = {**asdict(made), "path": made.path and str(made.path)}
    if made.path is None:
        if made.verdict:
            console.info(made.verdict)
        answer([made.text.rstrip("\n")], content, as_json=as_json)
        return
    lines = (
        made.text.rstrip("\n"),
        *((f"# {made.verdict}",) if made.verdict else ()),
        *(f"# switched off, for this model cannot have {item}" for item in made.cannot_have),
        f"# written to {made.path}; `{made.next_step}` says what `up` would do",
    )
    # As one text: a comment that went on in a further row would be none.
    answer(["\n".join(lines)], content, as_json=as_json)


def show_recipe(
    recipe: options.RecipeArgument = None,
    assignments: options.SetOption = None,
    unsafe: options.UnsafeOption = False,
    _offline: options.OfflineOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show a recipe with all that it inherits, and from where."""
    from sparkdeploy.deploy.request import resolve
    from sparkdeploy.recipe import report

    settings = options.current_settings()
    assignments = options.overrides(assignments, unsafe=unsafe)
    resolved = resolve(options.requested(recipe, assignments, settings), settings)
    content = resolved.recipe.model_dump(by_alias=True, mode="json")
    answer(report.origin_lines(resolved), content, as_json=as_json)


def plan_recipe(
    context: typer.Context,
    recipe: options.RecipeOrStackArgument = None,
    assignments: options.SetOption = None,
    port: options.PortOption = None,
    max_len: options.MaxLenOption = None,
    name: options.NameOption = "main",
    public: options.PublicOption = False,
    cluster: options.ClusterOption = False,
    solo: options.SoloOption = False,
    show: ShowOption = None,
    check: CheckOption = False,
    hardware: options.HardwareOption = None,
    headers: HeadersOption = False,
    verbose: VerboseOption = False,
    _offline: options.OfflineOption = False,
    known_bad: options.KnownBadOption = False,
    unsafe: options.UnsafeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Say what `up` would do, and do nothing. With --hardware, what would fit and how fast.

    Of a stack file: which of its models fit together, and what each start costs.
    """
    settings = options.current_settings()
    if (stack := options.stack_file(recipe, settings)) is not None:
        from sparkdeploy.cli.stack import show_stack

        show_stack(stack, context, settings, hardware)
        return
    options.require_name(name)
    if solo and cluster:
        raise UsageError("--solo and --cluster exclude each other")
    assignments = options.overrides(
        assignments, port, max_len, known_bad=known_bad, unsafe=unsafe, solo=solo
    )
    if hardware is not None or headers:
        if show is not None or check:
            raise UsageError(
                "--hardware and --headers estimate; --show and --check are about the plan",
                hint="run `sparkdeploy plan` once with each",
            )
        outlook = _outlook(recipe, assignments, hardware, headers=headers, cluster=cluster)
        answer(_outlook_lines(outlook, verbose=verbose), outlook.as_dict(), as_json=as_json)
        require_none(outlook.problems)
        return
    from sparkdeploy.deploy.request import plan_for, with_expected_paths

    request = options.requested(
        recipe, assignments, settings, name=name, public=public, cluster=cluster
    )
    plan = plan_for(request, settings, unasked=not check)
    if show in {"args", "container"}:
        plan = with_expected_paths(plan, settings)
    print_plan(plan, settings, show, as_json=as_json)
    # What `up` would refuse goes before what it would do.
    if check or show is None:
        require_none(plan.problems)
    if check:
        _require_nothing_to_do(plan)


def _outlook(
    recipe: str | None,
    assignments: list[str],
    hardware: str | None,
    *,
    headers: bool,
    cluster: bool,
) -> Outlook:
    from sparkdeploy.authoring.model_facts import WhenMissing
    from sparkdeploy.authoring.outlook import outlook_for

    return outlook_for(
        recipe,
        assignments,
        hardware=hardware or "spark",
        when_missing=WhenMissing.HUB if headers else WhenMissing.SHIPPED,
        cluster=cluster,
    )


def _outlook_lines(outlook: Outlook, *, verbose: bool) -> Iterator[Block]:
    if not (verbose or console.verbose):
        from sparkdeploy.authoring.summary import summary_lines

        yield from summary_lines(outlook, options.current_settings())
        return
    from sparkdeploy.checks.report import finding_lines

    yield line_of(outlook.verdict_piece())
    yield from finding_lines((*outlook.problems, *outlook.warnings))
    yield from outlook.capacity_lines()
    yield from outlook.speed_lines()


def _require_nothing_to_do(plan: Plan) -> None:
    if plan.has_work:
        command = f"sparkdeploy up {plan.resolved.called}"
        raise ChangesPendingError("the plan has work to do", hint=f"run `{command}`")
    if plan.is_unchecked:
        raise ChangesPendingError("memory was not checked", hint="the line with ? says why")


def doctor(
    recipe: options.RecipeArgument = None,
    assignments: options.SetOption = None,
    unsafe: options.UnsafeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Check this machine for a recipe: GPU, memory, Docker, network."""
    from sparkdeploy.checks import report
    from sparkdeploy.deploy.doctor import examine
    from sparkdeploy.deploy.request import resolve

    settings = options.current_settings()
    request = options.requested(recipe, options.overrides(assignments, unsafe=unsafe), settings)
    findings = examine(resolve(request, settings), settings)
    answer(report.lines(findings), report.as_dict(findings), as_json=as_json)
    failed = report.failures(findings)
    if failed:
        count = "1 check" if failed == 1 else f"{failed} checks"
        raise NodeError(f"{count} failed", hint="the commands above, then `sparkdeploy doctor`")
