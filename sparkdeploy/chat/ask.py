"""`ask`: one question, one answer."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.chat.answer import Telling, ask_for, reach_partner, remark, took
from sparkdeploy.deploy import names
from sparkdeploy.errors import UsageError
from sparkdeploy.stored_json import read_bytes
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import beneath
from sparkdeploy.terminal.style import draws_on

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkdeploy.chat.answer import Wishes
    from sparkdeploy.server.streaming import AnswerSoFar
    from sparkdeploy.settings import Settings

MAX_PICTURE_BYTES = 32 << 20
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)
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


def picture_url(path: Path) -> str:
    """Return a picture as a data: URL; UsageError for what cannot be read or is none."""
    try:
        content = read_bytes(path.expanduser(), MAX_PICTURE_BYTES)
    except OSError as error:
        raise UsageError(f"the picture {path} cannot be read: {error.strerror}") from error
    kind = _kind(content)
    if kind is None:
        raise UsageError(
            f"{path} is no picture that models take", hint="PNG, JPEG, WebP, GIF or BMP"
        )
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _kind(content: bytes) -> str | None:
    # What is in a file counts, not what it is called.
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _KINDS if content.startswith(start)), None)


def user_message(text: str, picture_urls: Sequence[str]) -> dict[str, Any]:
    """Return what a person says; plain text where there is no picture, for any template."""
    if not picture_urls:
        return {"role": "user", "content": text}
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in picture_urls]
    return {"role": "user", "content": [*pictures, {"type": "text", "text": text}]}
