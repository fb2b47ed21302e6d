"""`ask`: one question, one answer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.chat.answer import Telling, ask_for, remark, took
from sparkdeploy.chat.pictures import picture_url, user_message
from sparkdeploy.chat.side import reach_partner
from sparkdeploy.deploy import names
from sparkdeploy.errors import UsageError
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import beneath
from sparkdeploy.terminal.style import draws_on

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkdeploy.chat.answer import Wishes
    from sparkdeploy.server.streaming import AnswerSoFar
    from sparkdeploy.settings import Settings

FROM_INPUT = "-"
ANY_QUESTION = '"..."'
QUOTES = 'put it in quotes: sparkdeploy ask "What is a mixture of experts?"'


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    text: str
    name: str | None = None
    """Of the deployment; None for the only one."""
    system: str | None = None
    pictures: tuple[Path, ...] = ()

    def messages(self) -> list[dict[str, Any]]:
        """Return what is sent; UsageError for a picture that cannot be."""
        urls = [picture_url(path) for path in self.pictures]
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, user_message(self.text, urls)]


def read_words(words: Sequence[str]) -> tuple[str | None, str]:
    """Return name and question from `[NAME] QUESTION`; UsageError when there is no question.

    The question is read from standard input when it is `-`, or left out where input is piped. One
    word that a deployment is called is its name.
    """
    if len(words) > 2:
        raise UsageError("the question is more than one word of the command line", hint=QUOTES)
    is_left_out = not words or (len(words) == 1 and names.is_deployment(words[0]))
    name = words[0] if words and (len(words) == 2 or is_left_out) else None
    text = FROM_INPUT if is_left_out else words[-1]
    if text == FROM_INPUT:
        if is_left_out and sys.stdin.isatty():
            raise UsageError("there is no question", hint=QUOTES)
        text = sys.stdin.read()
    if not text.strip():
        raise UsageError("the question is empty", hint=QUOTES)
    return name, text


def ask(question: AskedQuestion, wishes: Wishes, settings: Settings) -> None:
    """Show the answer on stdout as it comes; what it took goes to stderr."""
    messages = question.messages()
    partner = reach_partner(question.name, "ask", settings, ANY_QUESTION)
    telling = Telling(shows_thoughts=draws_on(beneath(sys.stderr)), shows_text=True)
    with partner.model:
        so_far = ask_for(partner, messages, wishes, telling)
    console.info(took(so_far))
    if said := remark(so_far):
        console.warn(said)


def ask_whole(question: AskedQuestion, wishes: Wishes, settings: Settings) -> dict[str, Any]:
    """Return the answer with all that is known of it, once it has ended."""
    messages = question.messages()
    partner = reach_partner(question.name, "ask", settings, ANY_QUESTION)
    telling = Telling(shows_thoughts=False, shows_text=False)
    with partner.model:
        so_far = ask_for(partner, messages, wishes, telling)
        return {
            "deployment": partner.deployment,
            "model": partner.model.name,
            **answer_as_dict(so_far),
        }


def answer_as_dict(so_far: AnswerSoFar) -> dict[str, Any]:
    return {
        "text": so_far.text,
        "thought": so_far.thought,
        "finish_reason": so_far.finish_reason,
        "prompt_tokens": so_far.prompt_tokens,
        "completion_tokens": so_far.completion_tokens,
        "first_token_s": so_far.first_token_s,
        "tokens_per_s": so_far.tokens_per_s,
        "remark": remark(so_far),
    }
