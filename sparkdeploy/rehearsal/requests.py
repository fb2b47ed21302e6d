"""What a rehearsed server is asked beside greedy text, and what its greedy text must equal.

The text without speculation is recorded once for the same images and weights.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sparkdeploy import yaml_text
from sparkdeploy.atomic_files import make_private
from sparkdeploy.checkpoint import durable
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.answers import CHAT, COMPLETIONS
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.server.client import ServedModel
from sparkdeploy.stored_json import read_json

MAX_TOKENS = 16
AT_ONCE = 8
PROMPT = "Once upon a time"
_REQUESTS = yaml_text.load_file(Path(__file__).with_name("requests.yaml"))
SAMPLED: Final[Mapping[str, Mapping[str, Any]]] = _REQUESTS["sampled"]
TOOL: Final[Mapping[str, Any]] = _REQUESTS["tool"]
_SHOWN_CHARACTERS = 200
ANSWERED: Final = "answered"
_REFUSED = " answered 400: "
_WITHOUT_EFFECT = {"speculative", "port", "max_num_batched_tokens"}


@dataclass(frozen=True, slots=True)
class Asked:
    what: str
    outcome: str
    """`answered`, or the server's own words where it refused."""

    @property
    def is_answered(self) -> bool:
        return self.outcome == ANSWERED


def ask_sampled(model: ServedModel) -> Iterator[Asked]:
    """Send each kind of sampling alone, and all that is answered again, eight at once."""
    answered: list[Mapping[str, Any]] = []
    for what, extra in SAMPLED.items():
        body = {"prompt": PROMPT, "max_tokens": MAX_TOKENS, "ignore_eos": True, **extra}
        asked = _asked(model, f"sampling with {what}", COMPLETIONS, body)
        if asked.is_answered:
            answered.append(body)
        yield asked
    yield _asked_at_once(model, answered)


def _asked_at_once(model: ServedModel, bodies: Sequence[Mapping[str, Any]]) -> Asked:
    what = "eight of these at once"

    def ask(body: Mapping[str, Any]) -> Asked:
        # Each over a connection of its own.
        listener = model.require_listener
        with ServedModel(model.base_url, model=model.name, require_listener=listener) as apart:
            return _asked(apart, what, COMPLETIONS, body)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(ask, bodies))
    return next((item for item in done if not item.is_answered), Asked(what, ANSWERED))


def ask_conversation(model: ServedModel, recipe: Recipe) -> Iterator[Asked]:
    """Send a message through the chat template, and a tool call where a parser is named."""
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0.0}
    yield _asked(model, "a conversation", CHAT, body)
    if recipe.serve.tool_call_parser is not None:
        forced = {"type": "function", "function": {"name": "get_weather"}}
        called = {**body, "max_tokens": 64, "tools": [TOOL], "tool_choice": forced}
        yield _asked(model, "a tool call", CHAT, called)


def _asked(model: ServedModel, what: str, path: str, body: Mapping[str, Any]) -> Asked:
    try:
        model.ask(path, body)
    except UnhealthyError as error:
        if _REFUSED in error.message and _is_healthy(model):
            words = error.message.partition(_REFUSED)[2]
            return Asked(what, f"refused: {words[:_SHOWN_CHARACTERS]}")
        raise UnhealthyError(
            f"{what} is not answered: {error.message}", detail=error.detail, hint=error.hint
        ) from error
    return Asked(what, ANSWERED)


def _is_healthy(model: ServedModel) -> bool:
    """Ask over a new connection: vLLM 0.25.1 ends the one on which it refused a request."""
    with ServedModel(model.base_url) as again:
        return again.is_healthy()


@dataclass(frozen=True, slots=True)
class Answer:
    prompt: str
    text: str
    tokens: int
    duration_s: float


def reference_path(plan: Plan, asked: Mapping[str, object], state_dir: Path) -> Path:
    """Return the file of the text for what decides it: not speculation, MTP weights or the port."""
    recipe = plan.resolved.recipe
    inputs = {
        "image": plan.images[-1].stage.tag,
        "asked": dict(asked),
        "fp8": recipe.checkpoint.fp8_dense.model_dump(),
        "lm_head": recipe.checkpoint.lm_head,
        "shared_experts": recipe.checkpoint.shared_experts,
        "serve": recipe.serve.model_dump(exclude=_WITHOUT_EFFECT),
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return state_dir / "rehearsals" / f"{digest[:32]}.json"


def read_reference(path: Path) -> dict[str, str] | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {str(key): str(value) for key, value in read_json(path).items()} or None
    return None


def write_reference(path: Path, answers: Sequence[Answer]) -> None:
    make_private(path.parent)
    durable.write_text(path, json.dumps({item.prompt: item.text for item in answers}))


def compare_with_reference(answers: Sequence[Answer], texts: Mapping[str, str]) -> None:
    """Raise UnhealthyError naming the first text that is not the recorded one."""
    for answer in answers:
        expected = texts.get(answer.prompt)
        if expected != answer.text:
            raise UnhealthyError(
                f"greedy text for {answer.prompt!r} is not what it is without speculation",
                detail=f"without: {expected!r}\nwith:    {answer.text!r}",
                hint="the drafter or a kernel is wrong; `--fresh` makes the reference anew",
            )
