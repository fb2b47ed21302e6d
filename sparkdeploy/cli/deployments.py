"""`up`, `switch`, `status`, `logs`, `down`, `rollback`, `diagnose`, `rehearse`: what runs."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.checks.report import require_none
from sparkdeploy.cli import options
from sparkdeploy.cli.names import completing, deployments, nodes, recipes
from sparkdeploy.cli.options import answer, print_plan
from sparkdeploy.errors import NodeError, UsageError, joined
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.deploy.request import Request
    from sparkdeploy.deploy.up import UpOptions
    from sparkdeploy.rehearsal.rehearse import Report
    from sparkdeploy.settings import Settings

StayOption = Annotated[
    bool, typer.Option("--stay", help="Go on until it ends, as units of systemd do.")
]
UpdateImageOption = Annotated[
    bool,
    typer.Option(
        "--update-image", help="Ask the registry again what the recipe's tag is, and pin that."
    ),
]
ImageIdOption = Annotated[
    str | None,
    typer.Option(
        "--image-id",
        metavar="ID",
        help="Take the recipe's image for this one, which `docker load` has brought.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan, do nothing.")]


def up(
    context: typer.Context,
    recipe: options.RecipeOrStackArgument = None,
    assignments: options.SetOption = None,
    port: options.PortOption = None,
    max_len: options.MaxLenOption = None,
    name: options.NameOption = "main",
    public: options.PublicOption = False,
    cluster: options.ClusterOption = False,
    solo: options.SoloOption = False,
    dry_run: DryRunOption = False,
    prepare: Annotated[bool, typer.Option("--prepare", help="Do all but the start.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return after the start.")] = False,
    stay: StayOption = False,
    known_bad: options.KnownBadOption = False,
    unsafe: options.UnsafeOption = False,
    update_image: UpdateImageOption = False,
    image_id: ImageIdOption = None,
    drop_page_cache: options.PageCacheOption = False,
    yes: options.YesOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Deploy a recipe, and wait for the model's first answer.

    Of a stack file: make all its models ready, and start what is always kept.
    """
    from sparkdeploy.deploy.up import Extent, UpOptions

    if sum((prepare, detach, dry_run, stay)) > 1:
        raise UsageError("--dry-run, --prepare, --detach and --stay exclude each other")
    if solo and cluster:
        raise UsageError("--solo and --cluster exclude each other")
    if dry_run and update_image:
        raise UsageError("--update-image asks the registry, and --dry-run asks nobody")
    if image_id is not None and (dry_run or update_image):
        raise UsageError("--image-id pins an image: leave out --dry-run and --update-image")
    settings = options.current_settings()
    if (stack := options.stack_file(recipe, settings)) is not None:
        from sparkdeploy.cli.stack import up_of_stack

        up_of_stack(stack, context, settings)
        return
    assignments = options.overrides(
        assignments, port, max_len, known_bad=known_bad, unsafe=unsafe, solo=solo
    )
    request = options.requested(
        recipe, assignments, settings, name=name, public=public, cluster=cluster
    )
    if dry_run:
        _show_plan(request, settings, as_json=as_json)
        return
    extent = Extent.PREPARE if prepare else Extent.DETACH if detach else Extent.ANSWER
    how = UpOptions(extent, drop_page_cache, update_image, image_id, is_unit=stay)
    if stay:
        from sparkdeploy.deploy.stay import start_at_boot, stay_with

        start_at_boot(lambda: _deploy(request, settings, how, yes=yes, as_json=as_json))
        stay_with(name)
    else:
        _deploy(request, settings, how, yes=yes, as_json=as_json)


def switch(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="Its name or file.", autocompletion=completing(recipes)
        ),
    ],
    assignments: options.SetOption = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="The deployment; may be left out where there is one alone."),
    ] = None,
    cluster: options.ClusterOption = False,
    solo: options.SoloOption = False,
    dry_run: DryRunOption = False,
    known_bad: options.KnownBadOption = False,
    unsafe: options.UnsafeOption = False,
    drop_page_cache: options.PageCacheOption = False,
    yes: options.YesOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Serve another recipe at the address of a deployment. Port, key and aliases stay."""
    from sparkdeploy.deploy.nodes import resolve_name_or_none
    from sparkdeploy.deploy.request import at_address, served_at
    from sparkdeploy.deploy.up import UpOptions

    if solo and cluster:
        raise UsageError("--solo and --cluster exclude each other")
    settings = options.current_settings()
    name = resolve_name_or_none(name, ("switch", recipe, "--name"))
    if name is None:
        raise NodeError("nothing is deployed", hint=shlex.join(["sparkdeploy", "up", recipe]))
    served = served_at(name, settings)
    is_cluster = cluster or (bool(served.nodes) and not solo)
    assignments = options.overrides(assignments, known_bad=known_bad, unsafe=unsafe, solo=solo)
    request = options.requested(recipe, assignments, settings, name=name, cluster=is_cluster)
    request = at_address(request, served, settings)
    if dry_run:
        _show_plan(request, settings, as_json=as_json)
        return
    _deploy(request, settings, UpOptions(drop_page_cache=drop_page_cache), yes=yes, as_json=as_json)


def _show_plan(request: Request, settings: Settings, *, as_json: bool) -> None:
    from sparkdeploy.deploy.request import plan_for

    plan = plan_for(request, settings, unasked=True)
    print_plan(plan, settings, as_json=as_json)
    require_none(plan.problems)


def _deploy(
    request: Request, settings: Settings, how: UpOptions, *, yes: bool, as_json: bool
) -> None:
    from sparkdeploy.cli.outcome import print_outcome
    from sparkdeploy.deploy.request import resolve
    from sparkdeploy.deploy.up import up as deploy

    outcome = deploy(
        resolve(request, settings, unpinned=how.update_image),
        request,
        settings,
        confirm=(lambda _question: True) if yes else console.confirm,
        options=how,
    )
    print_outcome(outcome, request, how.extent, as_json=as_json)


def status(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Only these deployments; all when left out.",
            autocompletion=completing(deployments),
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show speed, waiting and memory once a second.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show the deployments of this machine. With --watch, what each does, once a second."""
    if watch:
        from sparkdeploy.monitor.run import watch as show_live

        show_live(tuple(names or ()), options.current_settings(), as_json=as_json)
        return
    from sparkdeploy.monitor.status import current_rows, rows_of
    from sparkdeploy.monitor.status_row import status_lines

    rows = rows_of(names, current_rows()) if names else current_rows()
    answer(status_lines(rows), [asdict(row) for row in rows], as_json=as_json)


def logs(
    name: options.NameArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on reading.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines.")] = None,
    node: Annotated[
        str | None,
        typer.Option(help="On a cluster: this node's log.", autocompletion=completing(nodes)),
    ] = None,
    nccl: Annotated[bool, typer.Option("--nccl", help="With what NCCL tells of itself.")] = False,
) -> None:
    """Show a deployment's log."""
    from sparkdeploy.deploy.nodes import resolve_name
    from sparkdeploy.monitor.status import read_log, read_quiet_log

    read = read_log if nccl else read_quiet_log
    chosen = resolve_name(name, ("logs",))
    console.answer_log(read(chosen, node=node, follow=follow, tail=tail))


def down(
    name: options.NameArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="Every deployment.")] = False,
    yes: options.YesOption = False,
) -> None:
    """Stop and remove a deployment; images and checkpoints stay."""
    from sparkdeploy.deploy import removal
    from sparkdeploy.deploy.nodes import resolve_name_or_none

    if everything and name is not None:
        raise UsageError("give a deployment's name or --all, not both")
    if everything:
        removed, errors = removal.down_all(asks=not yes)
    elif (only := resolve_name_or_none(name, ("down",))) is not None:
        removed, errors = [*removal.down(only, asks=not yes, is_named=name is not None)], []
    else:
        console.info("nothing to do: nothing is deployed")
        return
    for container in removed:
        console.info(f"removed {container}")
    if errors:
        raise joined(errors, f"{len(errors)} deployments were not removed")
    if not removed:
        console.info("nothing to do")


def rollback(
    name: options.NameArgument = None,
    drop_page_cache: options.PageCacheOption = False,
    yes: options.YesOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Go back to what a deployment was before its last replacement.

    One that is under way, or was interrupted, is ended.
    """
    from sparkdeploy.deploy.lifecycle import roll_back
    from sparkdeploy.deploy.nodes import resolve_name_or_none

    only = resolve_name_or_none(name, ("rollback",))
    if only is None:
        text = "nothing to do: nothing is deployed"
        answer([text], {"deployment": None, "action": "nothing", "text": text}, as_json=as_json)
        return
    done = roll_back(
        only,
        drop_page_cache=drop_page_cache,
        asks=not yes,
        is_named=name is not None,
    )
    content = {"deployment": only, "action": done.action, "text": done.text}
    answer([done.text], content, as_json=as_json)


def diagnose(
    subject: Annotated[
        str | None,
        typer.Argument(
            help="A deployment's name, or a crash folder; when left out, the only deployment, or "
            "the newest crash."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Pack a failure into a file for a bug report, without secrets."""
    from sparkdeploy.upkeep.diagnose import diagnose as pack

    bundle = pack(subject, output)
    if as_json:
        console.answer_json(asdict(bundle))
        return
    console.answer(f"root cause: {bundle.root_cause}")
    for name, size_bytes in bundle.files.items():
        console.info(f"  {format_bytes(size_bytes):>9}  {name}")
    console.answer(f"packed into {bundle.path}; read it before you send it")


def rehearse(
    recipe: options.RecipeArgument = None,
    assignments: options.SetOption = None,
    port: options.PortOption = None,
    max_len: options.MaxLenOption = None,
    name: options.NameOption = "rehearsal",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make the text without speculation anew.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
    cluster: options.ClusterOption = False,
    unsafe: options.UnsafeOption = False,
    yes: options.YesOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Serve a recipe's miniature on this machine's CPU, and ask it."""
    from sparkdeploy.rehearsal import rehearse as stage

    settings = options.current_settings()
    assignments = options.overrides(assignments, port, max_len, unsafe=unsafe)
    report = stage.rehearse(
        options.requested(recipe, assignments, settings, name=name, cluster=cluster),
        settings,
        fresh=fresh,
        keep=keep,
        consent=(lambda _question: True) if yes else console.confirm,
    )
    answer(_rehearsal_lines(report), report.as_dict(), as_json=as_json)
    if report.is_kept and not as_json:
        from sparkdeploy.cli.outcome import say_next

        say_next(report.deployment)


def _rehearsal_lines(report: Report) -> Iterator[str]:
    from sparkdeploy.recipe.answers import Task, curl_line, task_of

    compared = ", and its text is the one without speculation" if report.is_compared else ""
    yield f"rehearsal of {report.recipe}: it answers{compared}"
    # What dummy weights say is noise.
    for answered in report.answers if report.is_compared else ():
        text = f"{answered.prompt!r} -> {answered.text!r}"
        yield f"  {text} (random weights: equal it has to be, not sensible)"
    if report.startup_s is not None:
        yield f"  start to first answer: {report.startup_s:.1f} s"
    if report.answers:
        yield f"  speed: {report.tokens_a_second:.1f} tok/s (on a CPU: it says nothing of a GPU)"
    facts = report.facts
    if facts.lm_head is not None:
        rows = facts.draft_head_rows
        draft = f", a draft head of {rows} rows" if rows is not None else ""
        if (shared := facts.shared_int4_layers) is not None:
            draft = f", {shared} INT4 layers of shared experts{draft}"
        if (experts := facts.draft_int4_layers) is not None:
            draft += f", of the draft layer {experts} INT4 and {facts.draft_fp8_layers} FP8"
        yield f"  converted: {facts.fp8_layers} FP8 layers, LM head {facts.lm_head}{draft}"
    yield from _speculation_lines(report)
    yield f"  text: {report.reference}"
    for item in report.asked:
        if not item.is_answered:
            yield f"  ! {item.what}: {item.outcome}"
    yield f"  proved: {', '.join(report.proved)}"
    yield f"  not proved: {report.not_proved}"
    if report.is_kept:
        yield (
            f"  still serving at {report.base_url}/v1; `sparkdeploy down {report.deployment}` "
            "ends it"
        )
        task = task_of(report.endpoint) or Task.CHAT
        yield f"try: {curl_line(report.base_url, task, report.model)}"


def _speculation_lines(report: Report) -> Iterator[str]:
    drafted = report.speculation
    if drafted is not None and drafted.drafts:
        yield (
            f"  speculation: {drafted.tokens_a_draft:.0f} tokens drafted a step, "
            f"{drafted.draft_tokens} in {drafted.drafts} steps, "
            f"{drafted.acceptance or 0:.1%} accepted (random weights)"
        )
