"""Taking a capture: the texts are put to a served model, one request each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy import __version__
from sparkdeploy.bench.quality.capture import Capture, Position, TextCapture
from sparkdeploy.bench.quality.texts import TEXTS
from sparkdeploy.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from sparkdeploy.server.client import ServedModel

TOP_COUNT = 20
"""vLLM tells no more without `--max-logprobs`."""
MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked: how many of the texts, and how far the model goes on from each."""

    text_count: int = len(TEXTS)
    max_tokens: int = MAX_TOKENS
    top_count: int = TOP_COUNT

    @property
    def texts(self) -> Mapping[str, str]:
        """Return the texts by name."""
        return dict(list(TEXTS.items())[: self.text_count])


def take_capture(
    model: ServedModel,
    questions: Questions,
    *,
    label: str,
    now: datetime,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Capture:
    """Ask for every text; `now` is an aware time, `on_progress` hears of texts done and in all.

    Raises BenchError when the server does not tell the log-probabilities of a prompt, and
    UnhealthyError when it does not answer.
    """
    texts: list[TextCapture] = []
    for name, text in questions.texts.items():
        on_progress(len(texts), questions.text_count)
        texts.append(_ask(model, name, text, questions))
    return Capture(
        label=label,
        model=model.name,
        taken_at=now.isoformat(timespec="seconds"),
        sparkdeploy=__version__,
        top_count=questions.top_count,
        max_tokens=questions.max_tokens,
        texts=tuple(texts),
    )


def _ask(model: ServedModel, name: str, text: str, questions: Questions) -> TextCapture:
    answer = model.ask(
        "/v1/completions",
        {
            "prompt": text,
            "max_tokens": questions.max_tokens,
            "temperature": 0.0,
            "prompt_logprobs": questions.top_count,
            "return_token_ids": True,
            # A model that likes to stop at once would leave nothing to compare.
            "ignore_eos": True,
        },
    )
    choice = (answer.get("choices") or [{}])[0]
    told, token_ids = choice.get("prompt_logprobs"), choice.get("prompt_token_ids")
    if not told or not token_ids:
        raise BenchError(
            f"{model.base_url} does not tell the log-probabilities of a prompt",
            hint="vLLM does (`prompt_logprobs`, `return_token_ids`); other servers can be timed, "
            "but not compared for quality",
        )
    try:
        positions = _positions(token_ids, told)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"{model.base_url} told something unreadable of {name}: {error}"
        ) from error
    return TextCapture(
        name=name,
        positions=positions,
        greedy_ids=tuple(choice.get("token_ids") or ()),
        greedy_text=str(choice.get("text") or ""),
    )


def _positions(
    token_ids: Sequence[int], told: Sequence[Mapping[str, Mapping[str, Any]] | None]
) -> tuple[Position, ...]:
    """Read vLLM's answer: for each token `{id: {logprob, rank, ...}}`, null for the first."""
    return tuple(
        Position(token_id, {int(token): float(item["logprob"]) for token, item in entry.items()})
        for token_id, entry in zip(token_ids, told, strict=True)
        if entry is not None
    )
