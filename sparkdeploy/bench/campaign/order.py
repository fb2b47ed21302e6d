"""What a campaign does next: decided from its state alone, so that any kill may come between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy.bench.campaign.state import (
    MEASURING,
    SERVED,
    CampaignState,
    EndedStep,
    StepEnding,
    StepKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


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
