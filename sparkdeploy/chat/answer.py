"""One answer: asked for, shown as it comes, and what it took."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.names import resolve_name
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.serving import model_of, require_answers
from sparkdeploy.errors import NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.server.client import NoSuchRouteError
from sparkdeploy.server.pooling import CHAT, PoolingEndpoint, example_body
from sparkdeploy.server.streaming import AnswerSoFar, answer_pieces
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.server.client import ServedModel
    from sparkdeploy.server.streaming import AnswerPiece
    from sparkdeploy.settings import Settings

NO_THOUGHTS = {"enable_thinking": False, "thinking": False}
"""What chat templates call it; one that knows neither takes no notice."""
CUT = "length"
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
    deployment: str
    model: ServedModel


def reach_partner(name: str | None, command: str, settings: Settings, behind: str = "") -> Partner:
    """Return a deployment that answers; without a name the only one.

    `command` is what was typed, and `behind` what follows the name. Raises NodeError where there is
    none of that name, UsageError where one has to be named, and UnhealthyError while it starts or
    when it is down.
    """
    chosen = resolve_name(name, command.split(), behind)
    with connect(settings) as host:
        fact = require_deployment(host, chosen).current
    if fact.rank and fact.nodes:
        raise NodeError(
            f"this machine is only a worker of {fact.deployment}, which {fact.nodes[0]} heads",
            hint=f"run the same command there: --on {fact.nodes[0]}",
        )
    model = model_of(fact, settings)
    require_answers(fact, model)
    return Partner(fact.deployment, model)


@dataclass(frozen=True, slots=True)
class Wishes:
    """How an answer is to be."""

    max_tokens: int | None = None
    """None: as many as the context has room for."""
    thinks: bool = True
    """False asks the model's template for an answer without thoughts."""


class AnswerRefusedError(SparkdeployError):
    """The server answered, and did not do what it was asked: not a server that is unwell."""

    @property
    def is_overflow(self) -> bool:
        return _OVERFLOW.search(self.message) is not None


@dataclass(slots=True)
class Telling:
    """Shows an answer as it comes: the text on stdout, thoughts on stderr."""

    shows_thoughts: bool
    shows_text: bool
    _has_thought: bool = False
    _has_text: bool = False
    _last: str = ""
    _held: str = ""

    def take(self, piece: AnswerPiece) -> None:
        if piece.thought and self.shows_thoughts and not self._has_text:
            self._has_thought = True
            console.aside(piece.thought)
        if piece.text and self.shows_text:
            self._show(piece.text)

    def end(self) -> None:
        """End the last line, however the answer ended."""
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


def ask_for(
    partner: Partner, messages: Sequence[Mapping[str, Any]], wishes: Wishes, telling: Telling
) -> AnswerSoFar:
    """Return an answer when it has ended; who leaves early has closed its connection.

    Raises AnswerRefusedError in the server's words, and UnhealthyError when it is not reached.
    """
    so_far = AnswerSoFar()
    with contextlib.ExitStack() as ending:
        ending.callback(telling.end)
        follow(partner, messages, wishes, telling, so_far)
    return so_far


def follow(
    partner: Partner,
    messages: Sequence[Mapping[str, Any]],
    wishes: Wishes,
    telling: Telling,
    so_far: AnswerSoFar,
) -> None:
    """Fill `so_far` while an answer comes; raises as `ask_for`."""
    body: dict[str, Any] = {
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if wishes.max_tokens is not None:
        body["max_tokens"] = wishes.max_tokens
    if not wishes.thinks:
        body["chat_template_kwargs"] = NO_THOUGHTS
    try:
        with partner.model.streamed(CHAT, body) as chunks:
            for piece in _pieces_of(partner, chunks):
                so_far.take(piece)
                telling.take(piece)
    except NoSuchRouteError as error:
        raise _writes_no_text(partner) from error
    except UnhealthyError as error:
        hint = next((told for says, told in _HINTS if re.search(says, error.message)), None)
        if hint is None:
            raise
        raise AnswerRefusedError(error.message, hint=hint, detail=error.detail) from error


def _pieces_of(partner: Partner, chunks: Iterable[bytes]) -> Iterator[AnswerPiece]:
    """Yield the answer; an UnhealthyError in its midst says whose it was, and where to look."""
    try:
        yield from answer_pieces(chunks)
    except UnhealthyError as error:
        name = partner.deployment
        raise UnhealthyError(
            f"{name}: {error.message}",
            hint=f"`sparkdeploy logs {name}` shows why, `sparkdeploy diagnose {name}` packs it",
            detail=error.detail,
        ) from error


def _writes_no_text(partner: Partner) -> AnswerRefusedError:
    route: PoolingEndpoint | None = None
    with contextlib.suppress(UnhealthyError):
        route = partner.model.pooling_endpoint()
    if route is None:
        return AnswerRefusedError(f"{partner.deployment} has no route for a chat")
    body = str(dict(example_body(route.path, partner.model.name))).replace("'", '"')
    return AnswerRefusedError(
        f"{partner.deployment} writes no text: {partner.model.name} is a model for embeddings, "
        "scores or classes",
        hint=f"curl {partner.model.base_url}{route.path} -H 'Content-Type: application/json' "
        f"-d '{body}'",
    )


def took(so_far: AnswerSoFar) -> str:
    """Say what an answer took, in one line."""
    parts = []
    if so_far.completion_tokens is not None:
        parts.append(f"{so_far.completion_tokens:,} tokens")
    if so_far.first_token_s is not None:
        parts.append(f"the first after {so_far.first_token_s:.2f} s")
    if so_far.tokens_per_s is not None:
        parts.append(f"{so_far.tokens_per_s:.1f} tokens/s")
    return ", ".join(parts) or "nothing came"


def remark(so_far: AnswerSoFar) -> str:
    """Say what is amiss with an answer that has ended; empty when nothing is."""
    if so_far.finish_reason == CUT and not so_far.text.strip():
        return "it was still thinking when its tokens were used up: raise --max-tokens"
    if so_far.finish_reason == CUT:
        return "the answer was cut where its tokens were used up"
    return "" if so_far.text.strip() or so_far.thought.strip() else "the answer is empty"
