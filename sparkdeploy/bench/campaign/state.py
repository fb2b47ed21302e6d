"""What a campaign has done and does next, and its folder: any kill may come between two steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from sparkdeploy.bench.files import adapter_of, checked, read_content, read_versioned
from sparkdeploy.errors import BenchError
from sparkdeploy.node.private_folder import write_private

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


@dataclass(frozen=True, slots=True)
class ServeRecipe:
    """`up` of a recipe: its step, or once more because nobody knows whether it still serves."""

    recipe: int


@dataclass(frozen=True, slots=True)
class Take:
    """A step of a recipe that is not `up`."""

    recipe: int
    kind: StepKind


@dataclass(frozen=True, slots=True)
class PutBack:
    """What served before."""


NextStep = ServeRecipe | Take | PutBack


def next_action(state: CampaignState, standing: int | None) -> NextStep | None:
    """Return what to do, None when all is done.

    `standing` is the recipe that this process knows to serve; None after a start, and after a
    failure, for it may have taken the server with it.
    """
    if state.is_over:
        return None
    step = None if state.is_stopped else next(pending_steps(state), None)
    if step is None:
        return PutBack()
    recipe, kind = step
    if kind is StepKind.UP or (kind in SERVED and standing != recipe):
        return ServeRecipe(recipe)
    return Take(recipe, kind)


def pending_steps(state: CampaignState) -> Iterator[tuple[int, StepKind]]:
    """Yield recipe and step in their order.

    Tuned kernels are used by the next start under the same name, so tuning waits until all is
    measured; the recipe that served last is tuned first, without a start.
    """
    for index, recipe in enumerate(state.recipes):
        yield from ((index, kind) for kind in recipe.pending if kind in MEASURING)
    for index, recipe in reversed([*enumerate(state.recipes)]):
        yield from ((index, kind) for kind in recipe.pending if kind not in MEASURING)


def with_step(state: CampaignState, action: Take, ended: EndedStep) -> CampaignState:
    return _with_ended(state, action.recipe, (ended,))


def with_serving(state: CampaignState, action: ServeRecipe, ended: EndedStep) -> CampaignState:
    """Note an `up`; a recipe that does not serve has no further steps.

    One that served before keeps its first `up`: what fails now are the steps that are left.
    """
    recipe = state.recipes[action.recipe]
    news: tuple[EndedStep, ...] = (ended,) if StepKind.UP in recipe.pending else ()
    if ended.ending is not StepEnding.DONE:
        left = [kind for kind in recipe.pending if kind is not StepKind.UP]
        news += tuple(EndedStep(kind, StepEnding.SKIPPED, f"up: {ended.words}") for kind in left)
    return _with_ended(state, action.recipe, news)


def is_last_of_recipe(state: CampaignState, recipe: int) -> bool:
    """Say whether a recipe has been measured as far as it goes."""
    return not any(kind in MEASURING for kind in state.recipes[recipe].pending)


def progress(state: CampaignState) -> tuple[int, int]:
    """Return how many steps have ended, and how many there are; putting back is one of them."""
    total = sum(len(recipe.kinds) for recipe in state.recipes)
    return sum(len(recipe.ended) for recipe in state.recipes), total + 1


def _with_ended(state: CampaignState, index: int, news: tuple[EndedStep, ...]) -> CampaignState:
    recipe = state.recipes[index]
    recipes = list(state.recipes)
    recipes[index] = replace(recipe, ended=(*recipe.ended, *news))
    return replace(state, recipes=tuple(recipes))


STATE = "campaign.json"
REPORT, BUNDLE = "report.html", "bundle.json"


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    path: Path

    @property
    def report(self) -> Path:
        return self.path / REPORT

    @property
    def bundle(self) -> Path:
        return self.path / BUNDLE

    def result(self, recipe: int, kind: StepKind) -> Path:
        """Return where a step leaves what it brought."""
        return self.path / f"{recipe + 1:02}-{kind.value}.json"

    def write(self, state: CampaignState) -> None:
        """Keep the state, whole or not at all, also through a power cut."""
        text = adapter_of(CampaignState).dump_json(state, indent=1).decode() + "\n"
        _write(self.path / STATE, text, is_durable=True)

    def read(self) -> CampaignState:
        """BenchError for a file that is damaged, or of a newer sparkdeploy."""
        path = self.path / STATE
        state: CampaignState = read_versioned(path, CampaignState, "campaign", SCHEMA_VERSION)
        return state

    def write_result(self, recipe: int, kind: StepKind, value: object, form: type) -> None:
        text = adapter_of(form).dump_json(value, indent=1).decode() + "\n"
        _write(self.result(recipe, kind), text, is_durable=False)

    def read_result(self, recipe: int, kind: StepKind, form: type) -> Any:  # noqa: ANN401 - `form`
        """Return what a step brought, None where it brought nothing."""
        path = self.result(recipe, kind)
        return checked(read_content(path, "result"), form, path) if path.exists() else None


def campaigns_below(state_dir: Path) -> Path:
    return state_dir / "campaigns"


def unfinished(state_dir: Path) -> tuple[CampaignFolder, CampaignState] | None:
    """Return the newest campaign that is not over; BenchError when its state cannot be read."""
    for path in sorted(campaigns_below(state_dir).glob(f"*/{STATE}"), reverse=True):
        folder = CampaignFolder(path.parent)
        state = folder.read()
        if not state.is_over:
            return folder, state
    return None


def _write(path: Path, text: str, *, is_durable: bool) -> None:
    try:
        write_private(path, text, is_durable=is_durable)
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}", hint="make room") from error
