"""`doctor`: what may go wrong on this machine, and the command that fixes it."""

from __future__ import annotations

import typer

from sparkdeploy.cli.options import (
    JsonOption,
    OnOption,
    RecipeArgument,
    SetOption,
    UnsafeOption,
    with_consent,
)
from sparkdeploy.console import console


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    recipe: RecipeArgument = None,
    assignments: SetOption = None,
    allow_unsafe: UnsafeOption = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Check this machine for a recipe: GPU, memory, Docker, folders, ports, network."""
    from sparkdeploy.checks import report
    from sparkdeploy.commands.doctor import examine
    from sparkdeploy.commands.request import Request, resolve
    from sparkdeploy.errors import NodeError
    from sparkdeploy.settings import load_settings

    settings = load_settings()
    assignments = with_consent(assignments, known_bad=False, unsafe=allow_unsafe)
    request = Request(recipe or settings.default_recipe, tuple(assignments or ()))
    findings = examine(resolve(request, settings), settings)
    if as_json:
        console.answer_json(report.as_dict(findings))
    else:
        for line in report.lines(findings):
            console.answer(line)
    failed = report.failures(findings)
    if failed:
        count = "1 check" if failed == 1 else f"{failed} checks"
        raise NodeError(f"{count} failed", hint="the commands above, then `sparkdeploy doctor`")
