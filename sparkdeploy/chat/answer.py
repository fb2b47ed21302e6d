"""One answer: asked for, shown as it comes, and what it took; `ask` is no more than that."""

import base64
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdeploy.deploy.deployments import refuse_as_worker, require_deployment
from sparkdeploy.deploy.nodes import connect, is_deployment, resolve_name
from sparkdeploy.deploy.serving import model_of, require_answers, served_by
from sparkdeploy.errors import SparkdeployError, UnhealthyError, UsageError
from sparkdeploy.recipe.answers import CHAT, curl_line
from sparkdeploy.server.client import NoSuchRouteError, ServedModel
from sparkdeploy.server.streaming import AnswerPiece, AnswerSoFar, answer_pieces
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import read_bytes
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import beneath
from sparkdeploy.terminal.style import draws_on

NO_THOUGHTS = {"enable_thinking": False, "thinking": False}
"""What chat templates call it; one that knows neither takes no notice."""
CUT = "length"
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
_HINTS = (
    (
        r"maximum context length|longer than the maximum model length|max_model_len",
        "it takes fewer tokens: a shorter question or --max-tokens; "
        "serve.max_model_len is what the recipe serves",
    ),
    (
        r"(?i)multimodal|at most 0 image|image input|does not support image",
        "this model, or the way it is served, takes no pictures: ask without them",
    ),
    (
        r"(?i)chat template",
        "a model that was not trained to chat: continue a text with POST /v1/completions",
    ),
)
_OVERFLOW = re.compile(_HINTS[0][0])


@dataclass(frozen=True, slots=True)
class Partner:
    """A deployment that answers, and how its answers are to be."""

    deployment: str
    model: ServedModel
    max_tokens: int | None = None
    """None: as many as the context takes."""
    thinks: bool = True
    """False asks the model's template for an answer without thoughts."""


def reach_partner(
    name: str | None,
    command: str,
    settings: Settings,
    *,
    behind: str = "",
    max_tokens: int | None = None,
    thinks: bool = True,
) -> Partner:
    """Return a deployment that answers; without a name the only one.

    `command` is what was typed, and `behind` what follows the name. Raises NodeError where there is
    none of that name, UsageError where one has to be named, and UnhealthyError while it starts or
    when it is down, and AnswerRefusedError for one that writes no text.
    """
    chosen = resolve_name(name, command.split(), behind)
    with connect(settings) as host:
        found = require_deployment(host, chosen)
    refuse_as_worker(found)
    fact = found.current
    model = model_of(fact, settings)
    require_answers(fact, model)
    served = served_by(fact, settings)
    if not served.answers.has(CHAT):
        raise AnswerRefusedError(
            f"{served.name} writes no text: it answers {served.answers.describe()}",
            hint=curl_line(model.base_url, served.answers.main, served.model, served.key_file),
        )
    return Partner(fact.deployment, model, max_tokens, thinks)


class AnswerRefusedError(SparkdeployError):
    """The server answered, and did not do what it was asked: not a server that is unwell."""

    @property
    def is_overflow(self) -> bool:
        return _OVERFLOW.search(self.message) is not None


@dataclass(slots=True)
class AnswerPrinter:
    """An answer as far as it has come; where it `shows`, its text on stdout, thoughts on stderr."""

    shows: bool = True
    so_far: AnswerSoFar = field(default_factory=AnswerSoFar)
    _has_thought: bool = False
    _has_text: bool = False
    _last: str = ""
    _held: str = ""

    def take(self, piece: AnswerPiece) -> None:
        self.so_far.take(piece)
        if not self.shows:
            return
        if piece.thought and not self._has_text and draws_on(beneath(sys.stderr)):
            self._has_thought = True
            console.aside(piece.thought)
        if piece.text:
            self._show(piece.text)

    def end(self) -> None:
        if self._has_text and self._last != "\n":
            console.answer_text("\n")
        elif self._has_thought and not self._has_text:
            console.aside("\n")

    def _show(self, text: str) -> None:
        # A line end of two characters may come in two pieces.
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r") if self._held else text
        if not self._has_text:
            # Templates put empty lines between thoughts and answer.
            text = text.lstrip("\r\n")
            if text and self._has_thought:
                console.aside("\n\n")
        if text:
            self._has_text = True
            self._last = text[-1]
            console.answer_text(text)


def follow(partner: Partner, messages: Sequence[Mapping[str, Any]], printer: AnswerPrinter) -> None:
    """Print an answer as it comes; who leaves early has closed its connection."""
    body: dict[str, Any] = {
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if partner.max_tokens is not None:
        body["max_tokens"] = partner.max_tokens
    if not partner.thinks:
        body["chat_template_kwargs"] = NO_THOUGHTS
    has_begun = False
    try:
        with partner.model.streamed(CHAT, body) as chunks:
            has_begun = True
            for piece in answer_pieces(chunks):
                printer.take(piece)
    except NoSuchRouteError as error:
        raise AnswerRefusedError(f"{partner.deployment} has no route for a chat") from error
    except UnhealthyError as error:
        if has_begun:
            raise _broken_off(partner.deployment, error) from error
        hint = next((fix for words, fix in _HINTS if re.search(words, error.message)), None)
        if hint is None:
            raise
        raise AnswerRefusedError(error.message, hint=hint, detail=error.detail) from error
    finally:
        printer.end()


def _broken_off(name: str, error: UnhealthyError) -> UnhealthyError:
    """Return the error of an answer that ended in its midst: whose it was, and where to look."""
    return UnhealthyError(
        f"{name}: {error.message}",
        hint=f"`sparkdeploy logs {name}` shows why, `sparkdeploy diagnose {name}` packs it",
        detail=error.detail,
    )


def took(so_far: AnswerSoFar) -> str:
    parts = []
    if so_far.completion_tokens is not None:
        parts.append(f"{so_far.completion_tokens:,} tokens")
    if so_far.first_token_s is not None:
        parts.append(f"the first after {so_far.first_token_s:.2f} s")
    if so_far.tokens_per_s is not None:
        parts.append(f"{so_far.tokens_per_s:.1f} tokens/s")
    return ", ".join(parts) or "nothing came"


def remark(so_far: AnswerSoFar, limit: int | None) -> str:
    """Return what is amiss with an ended answer of at most `limit` tokens, if anything."""
    if so_far.finish_reason == CUT and not so_far.text.strip():
        return "it was still thinking when its tokens were used up: raise --max-tokens"
    if so_far.finish_reason == CUT and limit is None:
        return (
            "the answer was cut though nobody set its length: the context is full, or the model's "
            "generation_config.json has max_new_tokens (--set serve.generation_config=vllm)"
        )
    if so_far.finish_reason == CUT:
        return "the answer was cut where its tokens were used up"
    return "" if so_far.text.strip() or so_far.thought.strip() else "the answer is empty"


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
