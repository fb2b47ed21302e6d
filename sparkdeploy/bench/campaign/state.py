"""What a campaign has done and has still to do, as its file keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.

SCHEMA_VERSION = 1
MAX_WORDS = 500
"""Characters of what a step says of itself."""


class StepKind(StrEnum):
    """What is done with one recipe, in this order; `tune` comes after all recipes' other steps."""

    DOCTOR = "doctor"
    UP = "up"
    FIVE = "five"
    DECODE = "decode"
    LOAD = "load"
    AGENTS = "agents"
    QUALITY = "quality"
    NEEDLE = "needle"
    TOOLS = "tools"
    TUNE = "tune"


LOADS = (StepKind.LOAD, StepKind.AGENTS)
"""Steps that are suite `load`: single requests, and an agent's conversations."""
SUITES = (StepKind.FIVE, StepKind.DECODE, *LOADS)
"""Steps that are suites of `bench`; others than loads under the same names."""
SERVED = (*SUITES, StepKind.QUALITY, StepKind.NEEDLE, StepKind.TOOLS, StepKind.TUNE)
"""Steps that ask the server."""
MEASURING = tuple(kind for kind in StepKind if kind is not StepKind.TUNE)


class StepEnding(StrEnum):
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was never begun: the recipe does not serve."""


@dataclass(frozen=True, slots=True)
class EndedStep:
    """How a step ended."""

    kind: StepKind
    ending: StepEnding
    words: str = ""
    """What it found, or why it failed; at most MAX_WORDS characters."""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecipeState:
    wanted: str
    """As it was typed; a path is absolute."""
    name: str
    """What the report calls it; no two of a campaign are the same."""
    title: str
    kinds: tuple[StepKind, ...]
    """The steps it has."""
    ended: tuple[EndedStep, ...] = ()

    def ending_of(self, kind: StepKind) -> EndedStep | None:
        return next((item for item in self.ended if item.kind is kind), None)

    @property
    def pending(self) -> tuple[StepKind, ...]:
        return tuple(kind for kind in self.kinds if self.ending_of(kind) is None)


@dataclass(frozen=True, slots=True)
class Before:
    """What served under the name before the first `up`; it is put back at the end.

    The file it stands in is this user's alone: `env` may hold secrets.
    """

    wanted: str
    """The name under which it was deployed."""
    values: Mapping[str, object]
    """The whole recipe; of `serve.env` the names alone."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The values of the variables that the recipe sets."""
    exposure: str = "loopback"


@dataclass(frozen=True, slots=True)
class CampaignState:
    campaign_id: str
    """Sortable: when it began, UTC."""
    started_at: str
    deployment: str
    """The one name under which every recipe is served."""
    recipes: tuple[RecipeState, ...]
    assignments: tuple[str, ...] = ()
    """What `--set` and the options of consent override in each recipe."""
    is_quick: bool = False
    before: Before | None = None
    """None where nothing served."""
    has_served: bool = False
    """Whether an `up` was begun: before that there is nothing to put back."""
    is_stopped: bool = False
    """Whether the user ended it before its time."""
    put_back: EndedStep | None = None
    """How putting back ended the last time it was tried."""
    schema: int = SCHEMA_VERSION

    @property
    def is_over(self) -> bool:
        return self.put_back is not None and self.put_back.ending is StepEnding.DONE


def short(words: str) -> str:
    """Return words as a step may say them: one line, not too long."""
    line = " ".join(words.split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 3] + "..."
