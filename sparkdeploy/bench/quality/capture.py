"""What one deployment said to the quality texts, and the file it is kept in.

The file lets one machine compare recipes one after the other: capture, replace, capture, compare.
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from sparkdeploy.errors import BenchError
from sparkdeploy.stored_json import read_json

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.

SCHEMA_VERSION = 1
KIND = "sparkdeploy quality capture"
CERTAIN = 1e-3
"""The highest log-probability that rounding may make of a certain token."""


@dataclass(frozen=True, slots=True)
class Position:
    """What the model expected at one token of a given text."""

    token_id: int
    """The token that stands there."""
    told: Mapping[int, float]
    """Natural log-probability by token: the likeliest ones and the one that stands there."""

    def __post_init__(self) -> None:
        """Refuse what is no distribution; ValueError."""
        if self.token_id not in self.told:
            raise ValueError(f"token {self.token_id} has no log-probability")
        if not all(-math.inf < value <= CERTAIN for value in self.told.values()):
            raise ValueError("a log-probability is not a number, or above zero")

    @property
    def logprob(self) -> float:
        """Return that of the token that stands there."""
        return self.told[self.token_id]

    @property
    def best(self) -> int:
        """Return the likeliest token; of equals the one with the lower id."""
        return min(self.told, key=lambda token: (-self.told[token], token))


@dataclass(frozen=True, slots=True)
class TextCapture:
    """One text: every position but the first, and how the model would go on."""

    name: str
    positions: tuple[Position, ...]
    greedy_ids: tuple[int, ...]
    greedy_text: str

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Return the text's tokens, its first left out: nothing comes before it."""
        return tuple(position.token_id for position in self.positions)


@dataclass(frozen=True, slots=True)
class Capture:
    """Everything one deployment said."""

    label: str
    """What a person calls it: the deployment and its recipe, or the address."""
    model: str
    """The served name."""
    taken_at: str
    """ISO 8601, UTC."""
    sparkdeploy: str
    top_count: int
    """How many of the likeliest tokens were asked for at each position."""
    max_tokens: int
    """How many tokens the model was asked to go on for."""
    texts: tuple[TextCapture, ...]
    kind: str = KIND
    schema: int = SCHEMA_VERSION

    @property
    def fingerprint(self) -> str:
        """Return a hash of the texts as tokens: captures of other texts cannot be compared."""
        content = [(text.name, text.token_ids) for text in self.texts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@functools.cache
def _adapter() -> TypeAdapter[Capture]:
    return TypeAdapter(Capture)


def write_capture(capture: Capture, path: Path) -> None:
    """Write the capture; it appears whole or not at all. BenchError when it cannot be written."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(_adapter().dump_json(capture) + b"\n")
        staged.replace(path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise BenchError(f"{path} cannot be written: {error.strerror}") from error


def read_capture(path: Path) -> Capture:
    """Read a capture; BenchError for anything else, or one of a newer schema."""
    try:
        content = read_json(path)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BenchError(f"{path} is no quality capture: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise BenchError(
            f"{path} is no quality capture",
            hint="make one with `sparkdeploy bench quality NAME --save FILE`",
        )
    if content.get("schema") != SCHEMA_VERSION:
        raise BenchError(
            f"{path} has schema {content.get('schema')}, this sparkdeploy reads {SCHEMA_VERSION}",
            hint="take the capture again, or update sparkdeploy",
        )
    try:
        # As JSON and strictly: the text "nan" is no number.
        return _adapter().validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BenchError(f"{path} is damaged: {place}: {first['msg']}") from error
