"""`status --watch`: what runs, shown once a second."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkdeploy.cli.options import current_settings
from sparkdeploy.errors import UsageError

WatchedArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAMES]...", help="With --watch: only these deployments."),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show speed, waiting and memory once a second.")
]


def show_watch(names: list[str] | None, *, is_watching: bool, as_json: bool) -> None:
    from sparkdeploy.commands.watch.run import Shown, watch

    if not is_watching:
        raise UsageError(
            "`status` shows every deployment and takes no name",
            hint=f"sparkdeploy status --watch {' '.join(names or ())}",
        )
    watch(tuple(names or ()), current_settings(), Shown.JSON if as_json else Shown.LINES)
