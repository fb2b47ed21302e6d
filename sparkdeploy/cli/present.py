"""`stop`, `start`, `restart`, `connect`, `ask` and `chat`: a deployment that is there."""

from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.cli import options
from sparkdeploy.export.client_names import Client
from sparkdeploy.terminal.console import console

MaxTokensOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Of an answer; as many as fit when left out."),
]
SystemOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="What the model is told before all else.")
]
NoThinkOption = Annotated[
    bool, typer.Option("--no-think", help="Ask the model's template for no thoughts.")
]


def stop(name: options.NameArgument = None) -> None:
    """End a deployment's containers; `start` brings them back."""
    from sparkdeploy.deploy.lifecycle import stop as end
    from sparkdeploy.deploy.nodes import resolve_name_or_none

    name = resolve_name_or_none(name, ("stop",))
    if name is None:
        console.info("nothing to do: nothing is deployed")
        return
    stopped = end(name)
    if not stopped:
        console.info(f"nothing to do: {name} does not run")
        return
    for container in stopped:
        console.info(f"stopped {container}")
    console.info(f"its memory is free; `sparkdeploy start {name}` starts the same again")


def start(
    name: options.NameArgument = None,
    drop_page_cache: options.PageCacheOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Start a stopped deployment, and wait for its first answer."""
    from sparkdeploy.cli.outcome import print_started
    from sparkdeploy.deploy.lifecycle import start as begin
    from sparkdeploy.deploy.nodes import resolve_name

    chosen = resolve_name(name, ("start",))
    print_started(begin(chosen, drop_page_cache=drop_page_cache), as_json=as_json)


def restart(
    name: options.NameArgument = None,
    drop_page_cache: options.PageCacheOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Stop a deployment, and start the same containers again."""
    from sparkdeploy.cli.outcome import print_started
    from sparkdeploy.deploy.lifecycle import restart as begin_anew
    from sparkdeploy.deploy.nodes import resolve_name

    chosen = resolve_name(name, ("restart",))
    print_started(begin_anew(chosen, drop_page_cache=drop_page_cache), as_json=as_json)


def connect(
    client: Annotated[
        Client, typer.Argument(help="What is to use the deployment.", show_default=False)
    ] = Client.OPENAI,
    name: options.NameArgument = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="HOST", help="What the client calls this machine.", show_default=False
        ),
    ] = "127.0.0.1",
    as_json: options.JsonOption = False,
) -> None:
    """Print a client's own settings for a deployment. A key is named by its file."""
    from sparkdeploy.cli.outcome import say_tunnel
    from sparkdeploy.export.clients import connect_client
    from sparkdeploy.export.neighbours import UNCHECKED_LISTENER
    from sparkdeploy.recipe.report import BESIDE_DRAFTS

    made = connect_client(client, name, host, options.current_settings())
    if as_json:
        console.answer_json(made.as_dict())
        return
    console.answer_text(made.settings)
    console.info(f"for: {made.place}")
    console.info(f"known: {UNCHECKED_LISTENER}")
    if made.served.drafts:
        console.info(BESIDE_DRAFTS)
    if made.served.key_file is None:
        say_tunnel(made.served.port)
    else:
        console.info(f"the key is in {made.served.key_file} of this machine, for its owner alone")


def ask(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] QUESTION",
            help="The deployment, which may be left out, and the question; - reads it from stdin.",
        ),
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="FILE", help="A picture; may be given several times."),
    ] = None,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    no_think: NoThinkOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Ask a deployment one question; the answer appears as it comes."""
    from sparkdeploy.chat import answer as talk
    from sparkdeploy.chat.answer import reach_partner

    name, text = talk.read_words(words or ())
    messages = talk.messages_of(text, system, images or ())
    partner = reach_partner(
        name,
        "ask",
        options.current_settings(),
        behind=talk.ANY_QUESTION,
        max_tokens=max_tokens,
        thinks=not no_think,
    )
    answered = talk.ask(partner, messages, shows=not as_json)
    if as_json:
        console.answer_json(answered)


def chat(
    name: options.NameArgument = None,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    no_think: NoThinkOption = False,
) -> None:
    """Talk to a deployment; it remembers what was said. /help shows what may be typed."""
    from sparkdeploy.chat.answer import reach_partner
    from sparkdeploy.chat.chat import chat as talk

    thinks = not no_think
    settings = options.current_settings()
    talk(reach_partner(name, "chat", settings, max_tokens=max_tokens, thinks=thinks), system)
