"""Which server a `bench` command asks: what its commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.errors import UsageError

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The deployment's name; main when left out.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Any OpenAI-compatible server instead of a deployment.")
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="With a URL: the served name; the first one when left out."),
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--key-file", help="With a URL: a file with the API key.")
]


def one_side(name: str | None, url: str | None) -> str:
    """Return the address or the deployment's name; UsageError when both were given."""
    if name and url:
        raise UsageError("give a deployment's name or --url, not both")
    return url or name or "main"
