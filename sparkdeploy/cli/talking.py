"""`ask` and `chat`: a deployment is spoken to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.cli.names import completing, deployments
from sparkdeploy.cli.options import JsonOption, current_settings
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
    as_json: JsonOption = False,
) -> None:
    """Ask a deployment one question; the answer appears as it comes."""
    from sparkdeploy.chat import ask as talk
    from sparkdeploy.chat.answer import Wishes

    name, text = talk.read_words(words or ())
    question = talk.AskedQuestion(text, name, system, tuple(images or ()))
    wishes = Wishes(max_tokens, thinks=not no_think)
    if as_json:
        console.answer_json(talk.ask_whole(question, wishes, current_settings()))
        return
    talk.ask(question, wishes, current_settings())


def chat(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The deployment's name; the only one when left out.",
            autocompletion=completing(deployments),
        ),
    ] = None,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    no_think: NoThinkOption = False,
) -> None:
    """Talk to a deployment; it remembers what was said. /help shows what may be typed."""
    from sparkdeploy.chat.answer import Wishes
    from sparkdeploy.chat.chat import chat as talk

    talk(name, system, Wishes(max_tokens, thinks=not no_think), current_settings())
