"""`rehearse`: a recipe in miniature, for real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.cli.options import ClusterOption, JsonOption, OnOption, RecipeArgument, SetOption
from sparkdeploy.console import console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.commands.rehearse import Report


def register(app: typer.Typer) -> None:
    app.command("rehearse")(rehearse)


def rehearse(
    recipe: RecipeArgument = None,
    assignments: SetOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make the text without speculation anew.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
    cluster: ClusterOption = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Serve a recipe's miniature on this machine's CPU and check its text."""
    from sparkdeploy.commands import rehearse as stage
    from sparkdeploy.commands.reach import Reach
    from sparkdeploy.settings import load_settings

    settings = load_settings()
    report = stage.rehearse(
        recipe or settings.default_recipe,
        assignments or (),
        settings,
        policy=stage.ReferencePolicy.FRESH if fresh else stage.ReferencePolicy.RECORDED,
        reach=Reach.CLUSTER if cluster else Reach.HERE,
        afterwards=stage.Afterwards.KEEP if keep else stage.Afterwards.TAKE_DOWN,
    )
    if as_json:
        from dataclasses import asdict

        console.answer_json({**asdict(report), "tokens_a_second": report.tokens_a_second})
        return
    for line in _lines(report):
        console.answer(line)


def _lines(report: Report) -> Iterator[str]:
    yield f"rehearsal of {report.recipe}: it answers, and the text is right"
    for answer in report.answers:
        yield f"  {answer.prompt!r} -> {answer.text!r}"
    if report.startup_s is not None:
        yield f"  start to first answer: {report.startup_s:.1f} s"
    yield f"  speed: {report.tokens_a_second:.1f} tok/s (a twin on a CPU: it says nothing of a GPU)"
    if report.lm_head is not None:
        rows = report.draft_head_rows
        draft = f", a draft head of {rows} rows" if rows is not None else ""
        yield f"  converted: {report.fp8_layers} FP8 layers, LM head {report.lm_head}{draft}"
    else:
        yield "  converted: nothing (stock checkpoint)"
    if report.speculation is not None and report.speculation.drafts:
        drafted = report.speculation
        yield (
            f"  speculation: {drafted.tokens_a_draft:.0f} tokens drafted a step, "
            f"{drafted.draft_tokens} in {drafted.drafts} steps, "
            f"{drafted.acceptance or 0:.1%} accepted (random weights)"
        )
    else:
        yield "  speculation: none"
    yield f"  text without speculation: {report.reference}"
    if report.is_kept:
        yield f"  still serving at {report.base_url}/v1; `sparkdeploy down rehearsal` ends it"
