"""The order of a campaign's steps, under any order of kills, resumes and failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.campaign.state import (
    MEASURING,
    SERVED,
    Before,
    CampaignState,
    EndedStep,
    NextStep,
    PutBack,
    RecipeState,
    ServeRecipe,
    StepEnding,
    StepKind,
    Take,
    next_action,
    pending_steps,
    progress,
    with_serving,
    with_step,
)

KINDS = st.sampled_from([MEASURING, tuple(StepKind)])
FATES = st.sampled_from(["done", "done", "done", "failed", "killed before", "killed after"])


def recipe(name: str, kinds: tuple[StepKind, ...] = MEASURING) -> RecipeState:
    return RecipeState(name, name, f"the recipe {name}", kinds)


def state_of(*recipes: RecipeState) -> CampaignState:
    before = Before("v1", {"name": "v1"})
    return CampaignState("20261125T200000Z", "2026-11-25T20:00:00Z", "main", recipes, before=before)


@dataclass
class World:
    """Does what is asked, and remembers it; the state alone outlives a kill."""

    state: CampaignState
    standing: int | None = None
    """What the process believes."""
    serving: int | None = None
    """What is true."""
    ended: list[NextStep] = field(default_factory=list)
    """Steps that came to their end, in order."""

    def step(self, fate: str) -> bool:
        """Do the next step; return whether there was one."""
        action = next_action(self.state, self.standing)
        if action is None:
            return False
        if fate == "killed before":
            self._die()
            return True
        if isinstance(action, Take) and action.kind in SERVED:
            assert self.serving == action.recipe, "a step asked a server that is not its recipe's"
        if isinstance(action, ServeRecipe):
            self.serving = action.recipe if fate != "failed" else None
        if fate == "killed after":  # and before the state was written
            self._die()
            return True
        self._keep(action, StepEnding.FAILED if fate == "failed" else StepEnding.DONE)
        return True

    def _keep(self, action: NextStep, ending: StepEnding) -> None:
        self.ended.append(action)
        if isinstance(action, PutBack):
            self.state = replace(self.state, put_back=EndedStep(StepKind.UP, ending))
            return
        kind = StepKind.UP if isinstance(action, ServeRecipe) else action.kind
        ended = EndedStep(kind, ending, "words", 1.0)
        self.standing = None
        if isinstance(action, ServeRecipe):
            self.state = with_serving(self.state, action, ended)
            self.standing = action.recipe if ending is StepEnding.DONE else None
        else:
            self.state = with_step(self.state, action, ended)
            self.standing = self.serving if ending is StepEnding.DONE else None

    def _die(self) -> None:
        """A restart of the machine may have taken the server along."""
        self.standing = self.serving = None

    def to_the_end(self) -> None:
        for _ in range(500):
            if not self.step("done"):
                return
        raise AssertionError("it does not end")


def steps_of(world: World) -> Counter[tuple[int, StepKind]]:
    return Counter((item.recipe, item.kind) for item in world.ended if isinstance(item, Take))


@given(st.lists(KINDS, min_size=1, max_size=4), st.lists(FATES, max_size=60))
def test_whatever_kills_it_each_step_ends_once_and_putting_back_is_last(
    kinds: list[tuple[StepKind, ...]], fates: list[str]
) -> None:
    world = World(state_of(*(recipe(f"r{index}", item) for index, item in enumerate(kinds))))
    for fate in fates:
        world.step(fate)
    world.to_the_end()

    assert world.state.is_over
    assert not list(pending_steps(world.state))
    for index, item in enumerate(world.state.recipes):
        assert Counter(ended.kind for ended in item.ended) == Counter(kinds[index])
    assert all(count == 1 for count in steps_of(world).values())
    put_back = [isinstance(item, PutBack) for item in world.ended]
    assert put_back[-1]
    first = put_back.index(True)
    assert all(put_back[first:]), "something was measured after what served was put back"
    done, total = progress(world.state)
    assert done + 1 == total


def test_after_a_step_that_failed_the_server_is_looked_after_and_the_next_step_goes_on() -> None:
    world = World(state_of(recipe("a")))
    for fate in ("done", "done", "failed"):
        world.step(fate)

    assert next_action(world.state, world.standing) == ServeRecipe(0)
    world.step("done")
    assert next_action(world.state, world.standing) == Take(0, StepKind.DECODE)
