"""What names a server on the command line of `bench`."""

from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.cli.names import completing, deployments
from sparkdeploy.errors import UsageError
from sparkdeploy.terminal.console import console

NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="The deployment's name; may be left out where there is one alone.",
        autocompletion=completing(deployments),
    ),
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
SaveOption = Annotated[
    str | None, typer.Option(help="A label to find the run by, or FILE.json to write.")
]
SuiteOption = Annotated[
    list[str] | None,
    typer.Option(
        help="five (the default), decode, agents, sweep, standard, with commas, or repeated."
    ),
]
RoundsOption = Annotated[int, typer.Option(min=1, help="After one warm-up each.")]
ConcurrencyOption = Annotated[str, typer.Option(help="For sweep: streams, with commas.")]
ContextOption = Annotated[
    str, typer.Option(help="For sweep: prompt and answer in tokens; K is 1024.")
]
SWEPT_CONCURRENCY = "1,2,4,8,16,32"
SWEPT_CONTEXT = "1K,2K,4K,8K,16K,32K,64K,128K,256K"


def one_side(name: str | None, url: str | None, command: str) -> str:
    """Return the name or address that was given, or the only deployment's; UsageError for both."""
    if name and url:
        raise UsageError("give a deployment's name or --url, not both")
    if url:
        return url
    from sparkdeploy.deploy.nodes import resolve_name

    chosen = resolve_name(name or None, command.split())
    if not name:
        console.info(f"measuring {chosen}, the only deployment")
    return chosen
