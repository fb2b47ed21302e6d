"""`status --watch`: what runs, shown once a second."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkdeploy.cli.names import completing, deployments
from sparkdeploy.cli.options import current_settings

WatchedArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Only these deployments; all when left out.",
        autocompletion=completing(deployments),
    ),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show speed, waiting and memory once a second.")
]


def show_watch(names: list[str] | None, *, as_json: bool) -> None:
    from sparkdeploy.monitor.run import watch

    watch(tuple(names or ()), current_settings(), as_json=as_json)
