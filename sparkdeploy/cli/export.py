"""`export`: a deployment in the words of other tools."""

from __future__ import annotations

import os

import typer

from sparkdeploy.cli.options import (
    KnownBadOption,
    NameOption,
    PublicOption,
    RecipeArgument,
    SetOption,
    UnsafeOption,
    current_settings,
    requested,
    with_consent,
)
from sparkdeploy.console import console

group = typer.Typer(
    help="A deployment as a systemd unit or a Compose file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@group.command()
def systemd(
    recipe: RecipeArgument = None,
    assignments: SetOption = None,
    name: NameOption = "main",
    public: PublicOption = False,
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
) -> None:
    """Print a unit that starts the deployment at boot by the same `up`; after 3 tries it stops."""
    from sparkdeploy.commands.export import export_systemd
    from sparkdeploy.export.systemd_unit import unit_name

    settings = current_settings()
    assignments = with_consent(assignments, known_bad=known_bad, unsafe=unsafe)
    request = requested(recipe, assignments, settings, name=name, public=public)
    console.answer_text(export_systemd(request, settings, os.environ))
    unit = unit_name(name)
    console.info(f"to use it: sparkdeploy export systemd ... | sudo tee /etc/systemd/system/{unit}")
    console.info(f"           sudo systemctl daemon-reload && sudo systemctl enable {unit}")


@group.command()
def compose(
    recipe: RecipeArgument = None,
    assignments: SetOption = None,
    name: NameOption = "main",
    public: PublicOption = False,
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
) -> None:
    """Print a Compose file of the very container that `up` would start."""
    from sparkdeploy.commands.export import export_compose

    settings = current_settings()
    assignments = with_consent(assignments, known_bad=known_bad, unsafe=unsafe)
    request = requested(recipe, assignments, settings, name=name, public=public)
    console.answer_text(export_compose(request, settings))
