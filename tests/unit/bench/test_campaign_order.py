"""The order of a campaign's steps, under any order of kills, resumes and failures."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.campaign import run as stage
from sparkdeploy.bench.campaign.folder import (
    SERVED,
    Before,
    Campaign,
    CampaignPlan,
    PlannedRecipe,
    StepKind,
    campaigns_below,
    unfinished,
)
from sparkdeploy.errors import BenchError, UnhealthyError
from sparkdeploy.settings import load_settings

MEASURING = tuple(kind for kind in StepKind if kind is not StepKind.TUNE)
KINDS = st.sampled_from([MEASURING, tuple(StepKind)])
FATES = st.sampled_from(["done", "done", "done", "failed", "killed before", "killed after"])
Step = tuple[int, StepKind]


class KilledError(BaseException):
    """The process is gone: nothing after it is written."""


@dataclass
class World:
    """Does the steps by their fates, and remembers them; the folder alone outlives a kill."""

    fates: list[str]
    serving: int | None = None
    ended: list[Step | None] = field(default_factory=list)
    """Steps that came to their end, in order; None is putting back."""

    def serve(self, recipe: int) -> str:
        return self._do((recipe, StepKind.UP))

    def take(self, recipe: int, kind: StepKind) -> str:
        if kind in SERVED:
            assert self.serving == recipe, "a step asked a server that is not its recipe's"
        return self._do((recipe, kind))

    def put_back(self, *_: object) -> str:
        return self._do(None)

    def _do(self, step: Step | None) -> str:
        fate = self.fates.pop(0) if self.fates else "done"
        if fate == "killed before":
            self._die()
        if step is not None and step[1] is StepKind.UP:
            self.serving = step[0] if fate != "failed" else None
        if fate == "killed after":
            self._die()
        self.ended.append(step)
        if fate == "failed":
            raise UnhealthyError("it failed")
        return "well"

    def _die(self) -> None:
        """A restart of the machine may have taken the server along."""
        self.serving = None
        raise KilledError

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        with (
            mock.patch.object(stage, "Steps", return_value=self),
            mock.patch.object(stage, "put_back", self.put_back),
            mock.patch.object(stage, "write_findings", return_value=None),
        ):
            yield


def begun(state_dir: Path, *kinds: tuple[StepKind, ...]) -> Campaign:
    recipes = tuple(PlannedRecipe(f"r{it}", f"r{it}", "", own) for it, own in enumerate(kinds))
    plan = CampaignPlan("2026-11-25T20:00:00Z", "main", recipes)
    campaign = Campaign(campaigns_below(state_dir) / "20261125T200000Z", plan)
    campaign.begin(Before("v1", {"name": "v1"}))
    return campaign


@given(st.lists(KINDS, min_size=1, max_size=3), st.lists(FATES, max_size=30))
def test_whatever_kills_it_each_step_ends_once_and_putting_back_is_last(
    kinds: list[tuple[StepKind, ...]], fates: list[str]
) -> None:
    world = World(list(fates))
    with tempfile.TemporaryDirectory() as name, world.at_work():
        settings = replace(load_settings(), state_dir=Path(name))
        campaign = begun(settings.state_dir, *kinds)
        for _ in range(len(fates) + 1):
            if unfinished(settings.state_dir) is None:
                break
            with contextlib.suppress(KilledError, BenchError):
                stage.run_campaign(None, settings, lambda _question: True)
        assert unfinished(settings.state_dir) is None
        assert not list(campaign.pending())
        assert not list(campaign.path.glob("before*"))
    taken = Counter(step for step in world.ended if step is not None and step[1] != "up")
    assert all(count == 1 for count in taken.values())
    put_back = [step is None for step in world.ended]
    assert put_back[-1]
    assert all(put_back[put_back.index(True) :]), "something was measured after putting back"


def test_after_a_step_that_failed_the_server_is_looked_after_and_the_next_step_goes_on(
    tmp_path: Path,
) -> None:
    world = World(["done", "done", "failed"])
    begun(tmp_path, MEASURING)
    with world.at_work():
        settings = replace(load_settings(), state_dir=tmp_path)
        stage.run_campaign(None, settings, lambda _question: True)
    expected = [StepKind.DOCTOR, StepKind.UP, StepKind.FIVE, StepKind.UP, StepKind.DECODE]
    assert [step[1] for step in world.ended[:5] if step is not None] == expected
