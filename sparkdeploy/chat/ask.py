"""`ask`: one question, one answer."""

import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkdeploy.chat.answer import AnswerPrinter, Partner, follow, remark, took
from sparkdeploy.deploy.nodes import is_deployment
from sparkdeploy.errors import UsageError
from sparkdeploy.stored_json import read_bytes
from sparkdeploy.terminal.console import console

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


def read_words(words: Sequence[str]) -> tuple[str | None, str]:
    """Return name and question from `[NAME] QUESTION`; UsageError when there is no question.

    The question is read from standard input when it is `-`, or left out where input is piped. One
    word that a deployment is called is its name.
    """
    if len(words) > 2:
        raise UsageError("the question is more than one word of the command line", hint=QUOTES)
    is_left_out = not words or (len(words) == 1 and is_deployment(words[0]))
    name = words[0] if words and (len(words) == 2 or is_left_out) else None
    text = FROM_INPUT if is_left_out else words[-1]
    if text == FROM_INPUT:
        if is_left_out and sys.stdin.isatty():
            raise UsageError("there is no question", hint=QUOTES)
        text = sys.stdin.read()
    if not text.strip():
        raise UsageError("the question is empty", hint=QUOTES)
    return name, text


def messages_of(text: str, system: str | None, pictures: Sequence[Path]) -> list[dict[str, Any]]:
    """Return what is sent: without a picture plain text, for any template."""
    first = [{"role": "system", "content": system}] if system else []
    urls = [{"type": "image_url", "image_url": {"url": _picture_url(path)}} for path in pictures]
    content: Any = [*urls, {"type": "text", "text": text}] if urls else text
    return [*first, {"role": "user", "content": content}]


def ask(partner: Partner, messages: Sequence[dict[str, Any]], *, shows: bool) -> dict[str, Any]:
    """Return the answer with all that is known of it; where it `shows`, print it as it comes."""
    printer = AnswerPrinter(shows=shows)
    with partner.model:
        follow(partner, messages, printer)
        model = partner.model.name
    so_far = printer.so_far
    if shows:
        console.info(took(so_far))
        if amiss := remark(so_far, partner.max_tokens):
            console.warn(amiss)
    return {
        "deployment": partner.deployment,
        "model": model,
        "text": so_far.text,
        "thought": so_far.thought,
        "finish_reason": so_far.finish_reason,
        "prompt_tokens": so_far.prompt_tokens,
        "completion_tokens": so_far.completion_tokens,
        "first_token_s": so_far.first_token_s,
        "tokens_per_s": so_far.tokens_per_s,
        "remark": remark(so_far, partner.max_tokens),
    }


def _picture_url(path: Path) -> str:
    """Return a picture as a data: URL; UsageError for what cannot be read or is none."""
    try:
        content = read_bytes(path.expanduser(), MAX_PICTURE_BYTES)
    except OSError as error:
        raise UsageError(f"the picture {path} cannot be read: {error.strerror}") from error
    # What is in a file counts, not what it is called.
    is_webp = content[:4] == b"RIFF" and content[8:12] == b"WEBP"
    kinds = (kind for start, kind in _KINDS if content.startswith(start))
    kind = "image/webp" if is_webp else next(kinds, None)
    if kind is None:
        raise UsageError(f"unsupported image format: {path}", hint="PNG, JPEG, WebP, GIF or BMP")
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
