"""`connect`: the settings of clients."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkdeploy.cli.options import JsonOption, current_settings
from sparkdeploy.export.client_names import Client
from sparkdeploy.terminal.console import console


def connect(
    client: Annotated[
        Client, typer.Argument(help="What is to use the deployment.", show_default=False)
    ] = Client.OPENAI,
    name: Annotated[
        str | None, typer.Argument(help="The deployment's name; the only one when left out.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="HOST", help="What the client calls this machine.", show_default=False
        ),
    ] = "127.0.0.1",
    as_json: JsonOption = False,
) -> None:
    """Print a client's own settings for a deployment; a key is named by its file."""
    from sparkdeploy.cli.outcome import say_tunnel
    from sparkdeploy.export.connect import connect_client
    from sparkdeploy.export.neighbour import UNCHECKED_LISTENER
    from sparkdeploy.recipe.report import BESIDE_DRAFTS

    made = connect_client(client, name, host, current_settings())
    if as_json:
        console.answer_json(made.as_dict())
        return
    console.answer_text(made.settings.text)
    console.info(f"for: {made.settings.place}")
    console.info(f"known: {UNCHECKED_LISTENER}")
    if made.served.drafts:
        console.info(BESIDE_DRAFTS)
    if made.served.key_file is None:
        say_tunnel(made.served.port)
    else:
        console.info(f"the key is in {made.served.key_file} of this machine, for its owner alone")
