"""`bench campaign`: begin one, go on with one, or end one early; any kill may come between."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.before import FILE, note_before, put_back, restored
from sparkdeploy.bench.campaign.report import write_findings
from sparkdeploy.bench.campaign.state import (
    CampaignFolder,
    CampaignState,
    EndedStep,
    PutBack,
    ServeRecipe,
    StepEnding,
    StepKind,
    campaigns_below,
    is_last_of_recipe,
    next_action,
    progress,
    short,
    unfinished,
    with_serving,
    with_step,
)
from sparkdeploy.bench.campaign.steps import Steps, planned
from sparkdeploy.bench.run import ISO_8601
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import BenchError, SparkdeployError, UsageError
from sparkdeploy.node.private_folder import make_private
from sparkdeploy.node.shared_files import open_plain
from sparkdeploy.plan.container import Deployment
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkdeploy.bench.campaign.state import NextStep
    from sparkdeploy.settings import Settings

COMMAND = "sparkdeploy bench campaign"


@dataclass(frozen=True, slots=True)
class WantedCampaign:
    recipes: tuple[str, ...]
    """Paths are absolute: it may be taken up from another folder."""
    assignments: tuple[str, ...]
    deployment: str
    is_quick: bool

    def is_of(self, state: CampaignState) -> bool:
        asked = (self.recipes, self.assignments, self.deployment, self.is_quick)
        recipes = tuple(recipe.wanted for recipe in state.recipes)
        return asked == (recipes, state.assignments, state.deployment, state.is_quick)


def run_campaign(
    wanted: WantedCampaign | None,
    settings: Settings,
    consent: Callable[[str], bool],
    *,
    is_stopped: bool = False,
) -> CampaignFolder:
    """Begin a campaign, or go on with the one of the same words that was broken off.

    Without `wanted` go on with the one that is not over; `is_stopped` measures nothing more, puts
    back what served before and writes what there is. UsageError when another one is not over;
    raises for recipes that cannot be read, and for what could not be put back, before anything is
    begun.
    """
    with alone(settings):
        found = unfinished(settings.state_dir)
        if found is not None:
            folder, state = found
            _require_same(wanted, state)
            _ask_again(state, consent)
            if is_stopped:
                state = replace(state, is_stopped=True)
                folder.write(state)
        elif wanted is not None:
            folder, state = _begin(wanted, settings, consent)
        else:
            raise BenchError("there is no campaign to go on with", hint=f"`{COMMAND}` begins one")
        return _go_on(folder, state, settings)


def _require_same(wanted: WantedCampaign | None, state: CampaignState) -> None:
    if wanted is None or (wanted.is_of(state) and not state.is_stopped):
        return
    names = " ".join(recipe.wanted for recipe in state.recipes)
    raise UsageError(
        f"the campaign of {names}, begun {state.started_at}, is not over",
        hint=f"`{COMMAND} --resume` goes on with it, `{COMMAND} --stop` ends it and puts back what "
        "served before",
    )


def _begin(
    wanted: WantedCampaign, settings: Settings, consent: Callable[[str], bool]
) -> tuple[CampaignFolder, CampaignState]:
    deployment = Deployment(wanted.deployment)
    resolved = [
        resolve(Request(name, wanted.assignments, deployment), settings) for name in wanted.recipes
    ]
    now = datetime.now(UTC)
    folder = CampaignFolder(campaigns_below(settings.state_dir) / f"{now:%Y%m%dT%H%M%SZ}")
    before = note_before(wanted.deployment, settings)
    state = CampaignState(
        campaign_id=folder.path.name,
        started_at=f"{now:{ISO_8601}}",
        deployment=wanted.deployment,
        recipes=planned(wanted.recipes, resolved, is_quick=wanted.is_quick),
        assignments=wanted.assignments,
        is_quick=wanted.is_quick,
        before=before,
    )
    _ask(state, consent)
    if before is not None:
        # What cannot be put back is told while somebody is there.
        restored(before, wanted.deployment, folder.path, settings)
    folder.write(state)
    return folder, state


def _ask(state: CampaignState, consent: Callable[[str], bool]) -> None:
    names = ", ".join(recipe.name for recipe in state.recipes)
    now = f"{state.deployment} runs {state.before.wanted}; it" if state.before else "What served"
    question = (
        f"{names} will be served as {state.deployment} one after the other, and models that are "
        f"not here downloaded. {now} is put back at the end. Go on?"
    )
    if not consent(question):
        raise SparkdeployError("no campaign was begun", hint="say yes, or pass --yes")


def _ask_again(state: CampaignState, consent: Callable[[str], bool]) -> None:
    question = (
        f"The campaign that began {state.started_at} replaces whatever serves as "
        f"{state.deployment} now. Go on?"
    )
    if state.has_served and not consent(question):
        raise SparkdeployError("the campaign was left as it is", hint="say yes, or pass --yes")


@dataclass(slots=True)
class _Doer:
    """Does what the state asks for, and writes the state after each step."""

    folder: CampaignFolder
    state: CampaignState
    settings: Settings
    standing: int | None = None
    """The recipe that is known to serve."""

    def run(self) -> None:
        steps = Steps(self.state, self.folder, self.settings)
        while (action := next_action(self.state, self.standing)) is not None:
            self._say(action)
            if isinstance(action, PutBack):
                self._put_back()
            elif isinstance(action, ServeRecipe):
                self._serve(action, steps)
            else:
                ended = _timed(action.kind, partial(steps.take, action.recipe, action.kind))
                if ended.ending is not StepEnding.DONE:
                    self.standing = None
                self._keep(with_step(self.state, action, ended))
            if not isinstance(action, PutBack) and is_last_of_recipe(self.state, action.recipe):
                self._report()

    def _serve(self, action: ServeRecipe, steps: Steps) -> None:
        # An interrupted `up` may have replaced what served already.
        self._keep(replace(self.state, has_served=True))
        self.standing = None
        ended = _timed(StepKind.UP, partial(steps.serve, action.recipe))
        if ended.ending is StepEnding.DONE:
            self.standing = action.recipe
        self._keep(with_serving(self.state, action, ended))

    def _put_back(self) -> None:
        state = self.state
        self.standing = None
        if not state.has_served:
            ended = EndedStep(StepKind.UP, StepEnding.DONE, "nothing was replaced")
        else:
            ended = _timed(
                StepKind.UP,
                lambda: put_back(state.before, state.deployment, self.folder.path, self.settings),
            )
        self.state = replace(state, put_back=ended)
        if ended.ending is not StepEnding.DONE:
            self._keep(self.state)
            self._report()
            raise BenchError(
                f"what served before was not put back: {ended.words}",
                hint=f"`{COMMAND} --stop` tries again; the report is {self.folder.report}",
            )
        # First the page, then the word that all is done: what is killed between does both again.
        write_findings(self.folder, self.state, self.settings)
        (self.folder.path / FILE).unlink(missing_ok=True)
        known = state.before
        forgotten = replace(known, env={}) if known is not None else None
        self._keep(replace(self.state, before=forgotten))

    def _report(self) -> None:
        """Write what there is by now; a page that cannot be written ends no campaign."""
        try:
            write_findings(self.folder, self.state, self.settings)
        except SparkdeployError as error:
            console.warn(f"no report yet: {error.message}")

    def _keep(self, state: CampaignState) -> None:
        self.state = state
        self.folder.write(state)

    def _say(self, action: NextStep) -> None:
        done, total = progress(self.state)
        words = "putting back what served before"
        if not isinstance(action, PutBack):
            kind = StepKind.UP if isinstance(action, ServeRecipe) else action.kind
            words = f"{self.state.recipes[action.recipe].name}: {kind.value}"
        console.info(f"[{done + 1}/{total}] {words}")


def _timed(kind: StepKind, work: Callable[[], str]) -> EndedStep:
    """Do a step; a failure is an ending like another, with its words."""
    started_s = time.monotonic()
    try:
        words, ending = work(), StepEnding.DONE
    except SparkdeployError as error:
        console.error(error.message, hint=error.hint, detail=error.detail)
        words, ending = error.message, StepEnding.FAILED
    except Exception as error:  # noqa: BLE001 - a bug in one step must not cost the whole night
        console.error(f"unexpected {type(error).__name__}: {error}")
        words, ending = f"unexpected {type(error).__name__}: {error}", StepEnding.FAILED
    return EndedStep(kind, ending, short(words), round(time.monotonic() - started_s, 3))


def _go_on(folder: CampaignFolder, state: CampaignState, settings: Settings) -> CampaignFolder:
    doer = _Doer(folder, state, settings)
    try:
        doer.run()
    except KeyboardInterrupt:
        done, total = progress(doer.state)
        console.warn(
            f"the campaign stops at step {done + 1} of {total}; `{COMMAND} --resume` goes on "
            f"with it, `{COMMAND} --stop` ends it and puts back what served before"
        )
        raise
    return folder


@contextlib.contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """One campaign at a time; a process that is killed frees the lock."""
    folder = campaigns_below(settings.state_dir)
    make_private(folder)
    descriptor = open_plain(folder / "lock")
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchError(
                "a campaign is running already", hint="wait for it, or end it with Ctrl-C there"
            ) from error
        yield
    finally:
        os.close(descriptor)
