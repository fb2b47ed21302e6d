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
    requested,
    with_consent,
)
from sparkdeploy.console import console

group = typer.Typer(
    help="A deployment as a systemd unit or a Compose file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="export")


@group.command()
def systemd(
    recipe: RecipeArgument = None,
    assignments: SetOption = None,
    name: NameOption = "main",
    public: PublicOption = False,
    allow_known_bad: KnownBadOption = False,
    allow_unsafe: UnsafeOption = False,
) -> None:
    """Print a unit that starts the deployment at boot by the same `up`; after 3 tries it stops."""
    from sparkdeploy.commands.export import export_systemd
    from sparkdeploy.export.systemd_unit import unit_name
    from sparkdeploy.settings import load_settings

    assignments = with_consent(assignments, known_bad=allow_known_bad, unsafe=allow_unsafe)
    settings = load_settings()
    request = requested(recipe, assignments, name=name, public=public, settings=settings)
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
    allow_known_bad: KnownBadOption = False,
    allow_unsafe: UnsafeOption = False,
) -> None:
    """Print a Compose file of the very container that `up` would start."""
    from sparkdeploy.commands.export import export_compose
    from sparkdeploy.settings import load_settings

    assignments = with_consent(assignments, known_bad=allow_known_bad, unsafe=allow_unsafe)
    settings = load_settings()
    request = requested(recipe, assignments, name=name, public=public, settings=settings)
    console.answer_text(export_compose(request, settings))
