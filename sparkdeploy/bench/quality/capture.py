"""What one deployment said to the quality texts, kept in a file to be compared later."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparkdeploy import __version__
from sparkdeploy.bench.endpoint import Access, reach
from sparkdeploy.bench.files import adapter_of, read_versioned, shipped, write_whole
from sparkdeploy.bench.record import RunOrigin
from sparkdeploy.errors import BenchError
from sparkdeploy.server.client import ServedModel
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.

SCHEMA_VERSION = 1
KIND = "sparkdeploy quality capture"
TOP_COUNT = 20
"""vLLM tells no more without `--max-logprobs`."""
CERTAIN = 1e-3
"""The highest log-probability that rounding may make of a certain token."""


@dataclass(frozen=True, slots=True)
class Position:
    """What the model expected at one token of a given text."""

    token_id: int
    told: Mapping[int, float]
    """Natural log-probability by token: the likeliest ones and the one that stands there."""

    def __post_init__(self) -> None:
        if self.token_id not in self.told:
            raise ValueError(f"token {self.token_id} has no log-probability")
        if not all(-math.inf < value <= CERTAIN for value in self.told.values()):
            raise ValueError("a log-probability is not a number, or above zero")

    @property
    def logprob(self) -> float:
        return self.told[self.token_id]

    @property
    def best(self) -> int:
        return min(self.told, key=lambda token: (-self.told[token], token))


@dataclass(frozen=True, slots=True)
class TextCapture:
    """One text: every position but the first, and how the model would go on."""

    name: str
    positions: tuple[Position, ...]
    greedy_ids: tuple[int, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The text's tokens, its first left out: nothing comes before it."""
        return tuple(position.token_id for position in self.positions)


@dataclass(frozen=True, slots=True)
class CaptureOrigin:
    """What a capture was taken of, so that it is found beside a run of the same."""

    name: str
    fingerprint: str
    """Of the recipe as it was deployed, else of address and served name."""


@dataclass(frozen=True, slots=True)
class Capture:
    label: str
    """What a person calls it: the deployment and its recipe, or the address."""
    model: str
    taken_at: str
    sparkdeploy: str
    texts: tuple[TextCapture, ...]
    served: CaptureOrigin
    kind: str = KIND
    schema: int = SCHEMA_VERSION

    @property
    def fingerprint(self) -> str:
        """A hash of the texts as tokens: captures of other texts cannot be compared."""
        content = [(text.name, text.token_ids) for text in self.texts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def served_of(origin: RunOrigin) -> CaptureOrigin:
    """Return what says that a capture and a run are of the same server: a recipe, or a place."""
    if (recipe := origin.recipe) is not None:
        return CaptureOrigin(recipe.name, f"{recipe.name} {recipe.fingerprint}")
    place = hashlib.sha256(f"{origin.url} {origin.model}".encode())
    return CaptureOrigin(origin.model, place.hexdigest())


def write_capture(capture: Capture, path: Path) -> None:
    write_whole(adapter_of(Capture).dump_json(capture).decode() + "\n", path)


def read_capture(path: Path) -> Capture:
    capture: Capture = read_versioned(path, Capture, "quality capture", SCHEMA_VERSION, KIND)
    return capture


def first_texts(count: int | None = None) -> Mapping[str, str]:
    return dict(list(shipped("quality/texts.yaml").items())[:count])


def take_texts(
    model: ServedModel, asked: Mapping[str, str], *, tokens: int, say: Callable[[str], None]
) -> tuple[TextCapture, ...]:
    """Ask every text and say which; UnhealthyError when the server does not answer."""
    texts = []
    for number, (name, text) in enumerate(asked.items(), 1):
        say(f"text {number} of {len(asked)}")
        texts.append(_ask(model, name, text, tokens))
    return tuple(texts)


def capture_of(
    side: str, *, count: int, tokens: int, settings: Settings, access: Access
) -> Capture:
    """Return what a side says: a saved capture is read, a deployment or an address is asked."""
    # A deployment's name has neither a slash nor this ending.
    if "://" not in side and (side.endswith(".json") or "/" in side):
        saved = read_capture(Path(side))
        return replace(saved, label=f"{Path(side).stem} ({saved.label})")
    found = reach(side, settings, access)
    with found.server.again() as model, console.step(f"quality of {found.label}") as step:
        return Capture(
            label=found.label,
            model=model.name,
            taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
            sparkdeploy=__version__,
            texts=take_texts(model, first_texts(count), tokens=tokens, say=step.say),
            served=served_of(found.origin),
        )


def _ask(model: ServedModel, name: str, text: str, tokens: int) -> TextCapture:
    answer = model.ask(
        "/v1/completions",
        {
            "prompt": text,
            "max_tokens": tokens,
            "temperature": 0.0,
            "prompt_logprobs": TOP_COUNT,
            "return_token_ids": True,
            # A model that likes to stop at once would leave nothing to compare.
            "ignore_eos": True,
        },
    )
    choice = (answer.get("choices") or [{}])[0]
    told, token_ids = choice.get("prompt_logprobs"), choice.get("prompt_token_ids")
    if not told or not token_ids:
        raise BenchError(
            f"{model.base_url} returns no log-probabilities of a prompt",
            hint="vLLM does (`prompt_logprobs`, `return_token_ids`); other servers can be timed, "
            "but not compared for quality",
        )
    try:
        positions = _positions(token_ids, told)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"{model.base_url} answered something unreadable about {name}: {error}"
        ) from error
    return TextCapture(name, positions, greedy_ids=tuple(choice.get("token_ids") or ()))


def _positions(
    token_ids: Sequence[int], told: Sequence[Mapping[str, Mapping[str, Any]] | None]
) -> tuple[Position, ...]:
    """Read vLLM's answer: for each token `{id: {logprob, rank, ...}}`, null for the first."""
    return tuple(
        Position(token_id, {int(token): float(item["logprob"]) for token, item in entry.items()})
        for token_id, entry in zip(token_ids, told, strict=True)
        if entry is not None
    )
