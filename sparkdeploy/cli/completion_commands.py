"""`completion`: names complete in bash, zsh and fish."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from sparkdeploy.cli.completion.shells import Shell
from sparkdeploy.console import console

ShellArgument = Annotated[
    Shell | None, typer.Argument(help="bash, zsh or fish; your login shell when left out.")
]

group = typer.Typer(
    help="Commands, options and names complete in bash, zsh and fish.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@group.command()
def install(shell: ShellArgument = None) -> None:
    """Let Tab complete names in shells that are started from now on."""
    from sparkdeploy.cli.completion import shells

    place = shells.install(shell or shells.shell_of(os.environ), os.environ)
    console.info(f"wrote {place.script}")
    if place.start_file is not None:
        console.info(f"{place.start_file} reads it by a line of its own")
    console.info("shells that are started from now on complete names")


@group.command()
def remove() -> None:
    """Remove what `install` wrote, for every shell."""
    from sparkdeploy.cli.completion import shells

    removed = shells.remove(os.environ)
    for path in removed:
        console.info(f"removed {path}")
    if not removed:
        console.info("nothing to do")


@group.command()
def show(shell: ShellArgument = None) -> None:
    """Print the script, for `eval "$(sparkdeploy completion show bash)"`."""
    from sparkdeploy.cli.completion import shells

    console.answer_text(shells.script(shell or shells.shell_of(os.environ)))
