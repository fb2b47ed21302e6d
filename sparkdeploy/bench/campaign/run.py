"""`bench campaign`: begin one, go on with one, or end one early; any kill may come between."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sparkdeploy import labels
from sparkdeploy.atomic_files import make_private, write_private
from sparkdeploy.bench.campaign.folder import (
    DONE,
    FAILED,
    HAS_SERVED,
    SERVED,
    SKIPPED,
    STOPPED,
    Before,
    Campaign,
    CampaignPlan,
    SharedStep,
    StepKind,
    campaigns_below,
    unfinished,
)
from sparkdeploy.bench.campaign.report import write_findings
from sparkdeploy.bench.campaign.steps import Steps, planned
from sparkdeploy.bench.endpoint import MAX_RECIPE_CHARACTERS
from sparkdeploy.bench.run import ISO_8601
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.removal import down
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.deploy.up import up
from sparkdeploy.errors import BenchError, NodeError, SparkdeployError, UsageError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.lock import lock_within
from sparkdeploy.node.shared_files import open_plain
from sparkdeploy.plan.container import Deployment
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.report import values_to_show
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console

COMMAND = "sparkdeploy bench campaign"
GO_ON = (
    f"`{COMMAND} --resume` goes on with it, `{COMMAND} --stop` ends it and puts back what served "
    "before"
)
SAY_YES = "say yes, or pass --yes"
PUT_BACK = "putting back what served before"
FILE = "before.yaml"
CONSENTS = ("allow_unsafe", "allow_known_bad")
"""A recipe cannot allow itself these; the user did when it was deployed."""
MAX_WORDS = 500
"""Characters of what a step says of itself."""


@dataclass(frozen=True, slots=True)
class WantedCampaign:
    recipes: tuple[str, ...]
    """Paths are absolute: it may be resumed from another folder."""
    assignments: tuple[str, ...]
    deployment: str
    is_quick: bool

    def is_of(self, plan: CampaignPlan) -> bool:
        recipes = tuple(recipe.wanted for recipe in plan.recipes)
        same = WantedCampaign(recipes, plan.assignments, plan.deployment, plan.is_quick)
        return self == same


def run_campaign(
    wanted: WantedCampaign | None,
    settings: Settings,
    consent: Callable[[str], bool],
    *,
    is_stopped: bool = False,
) -> Campaign:
    """Begin a campaign, or go on with the one that was broken off; `is_stopped` ends it.

    What served before is put back; what cannot be read or put back raises before anything begins.
    """
    with alone(settings):
        campaign = unfinished(settings.state_dir)
        if campaign is not None:
            _require_same(wanted, campaign)
            if campaign.is_marked(HAS_SERVED) and not consent(_ask_again(campaign.plan)):
                raise SparkdeployError("the campaign was left as it is", hint=SAY_YES)
            if is_stopped:
                campaign.mark(STOPPED)
        elif wanted is not None:
            campaign = _begin(wanted, settings, consent)
        else:
            raise BenchError("there is no campaign to go on with", hint=f"`{COMMAND}` begins one")
        _go_on(campaign, settings)
        return campaign


def _require_same(wanted: WantedCampaign | None, campaign: Campaign) -> None:
    if wanted is None or (wanted.is_of(campaign.plan) and not campaign.is_marked(STOPPED)):
        return
    names = " ".join(recipe.wanted for recipe in campaign.plan.recipes)
    raise UsageError(
        f"the campaign of {names}, begun {campaign.plan.started_at}, is not over",
        hint=GO_ON,
    )


def _begin(wanted: WantedCampaign, settings: Settings, consent: Callable[[str], bool]) -> Campaign:
    deployment = Deployment(wanted.deployment)
    resolved = [
        resolve(Request(name, wanted.assignments, deployment), settings) for name in wanted.recipes
    ]
    now = datetime.now(UTC)
    before = note_before(wanted.deployment, settings)
    plan = CampaignPlan(
        started_at=f"{now:{ISO_8601}}",
        deployment=wanted.deployment,
        recipes=planned(wanted.recipes, resolved, is_quick=wanted.is_quick),
        assignments=wanted.assignments,
        is_quick=wanted.is_quick,
    )
    if not consent(_ask(plan, before)):
        raise SparkdeployError("no campaign was begun", hint=SAY_YES)
    campaign = Campaign(campaigns_below(settings.state_dir) / f"{now:%Y%m%dT%H%M%SZ}", plan)
    if before is not None:
        # What cannot be put back is refused while somebody is there.
        restored(before, wanted.deployment, campaign.path, settings)
    campaign.begin(before)
    return campaign


def _ask(plan: CampaignPlan, before: Before | None) -> str:
    names = ", ".join(recipe.name for recipe in plan.recipes)
    now = f"{plan.deployment} runs {before.wanted}; it" if before else "What served"
    return (
        f"{names} will be served as {plan.deployment} one after the other, and models that are "
        f"not here downloaded. {now} is put back at the end. Go on?"
    )


def _ask_again(plan: CampaignPlan) -> str:
    return (
        f"The campaign that began {plan.started_at} replaces whatever serves as "
        f"{plan.deployment} now. Go on?"
    )


def note_before(deployment: str, settings: Settings) -> Before | None:
    """Return what serves under the name, if anything; NodeError for what could not be put back."""
    with connect(settings) as host:
        found = find_deployment(host, deployment)
        fact = found.serving if found is not None else None
        if fact is None or not fact.is_running:
            return None
        if fact.nodes:
            raise NodeError(
                f"{deployment} is served by several nodes, and a campaign measures one machine",
                hint=f"`sparkdeploy down {deployment}` first, or measure under another --name",
            )
        return _noted(host, fact)


def _noted(host: DockerHost, fact: ContainerFact) -> Before:
    try:
        written = fact.labels.get(labels.RECIPE_VALUES, "")[:MAX_RECIPE_CHARACTERS]
        recipe = Recipe.model_validate_json(written)
    except ValueError as error:
        raise NodeError(
            f"{fact.deployment} was started by an earlier sparkdeploy, and could not be put back",
            hint="`sparkdeploy up` its recipe once more, or measure under another --name",
        ) from error
    pairs = (str(item).partition("=") for item in host.inspect(fact.container_id)["Config"]["Env"])
    env = {name: value for name, _, value in pairs if name in recipe.serve.env}
    return Before(
        wanted=fact.labels.get(labels.RECIPE, recipe.name),
        values=json.loads(written),
        env=env,
        exposure=fact.labels.get(labels.EXPOSURE, "loopback"),
    )


def restored(
    before: Before, deployment: str, folder: Path, settings: Settings
) -> tuple[Resolved, Request]:
    """Return the recipe and the request that make what was noted, by name or by its values."""
    whole: dict[str, Any] = json.loads(json.dumps(before.values))
    whole["serve"]["env"] = dict(before.env)
    request = Request(before.wanted, (), Deployment(deployment, before.exposure == labels.PUBLIC))
    try:
        named = resolve(request, settings)
        request = replace(request, assignments=tuple(differences(_whole(named.recipe), whole)))
        named = resolve(request, settings)
        if _whole(named.recipe) == whole:
            return named, request
    except SparkdeployError:
        pass  # It is gone, or others' by now: the values are what counts.
    values = {name: value for name, value in whole.items() if name not in {*CONSENTS, "extends"}}
    # Its values are the user's own deployment's, wherever the file lies.
    consents = tuple(f"{it}=true" for it in CONSENTS if it == "allow_unsafe" or whole.get(it))
    path = folder / FILE
    write_private(path, json.dumps(values, indent=1) + "\n")
    request = replace(request, recipe=str(path), assignments=consents)
    try:
        return resolve(request, settings), request
    except SparkdeployError:
        path.unlink()
        raise


def put_back(before: Before | None, deployment: str, folder: Path, settings: Settings) -> str:
    """Make the deployment what it was and return that in words; raises as `up` and `down` do."""
    if before is None:
        down(deployment, missing_ok=True)
        return f"nothing served as {deployment} before, and nothing does now"
    resolved, request = restored(before, deployment, folder, settings)
    up(resolved, request, settings, confirm=lambda _question: True)
    return f"{deployment} serves {before.wanted} again"


def differences(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `--set` has to say to make the one of the other; JSON is YAML."""
    for name, value in wanted.items():
        there = now.get(name)
        if isinstance(value, dict) and isinstance(there, dict) and there:
            yield from (f"{name}.{rest}" for rest in differences(there, value))
        elif name not in now or there != value:
            yield f"{name}={json.dumps(value)}"


def _whole(recipe: Recipe) -> dict[str, Any]:
    values = values_to_show(recipe)
    values["serve"]["env"] = dict(recipe.serve.env)
    return values


@dataclass(slots=True)
class CampaignRun:
    """Does what has not ended yet, and writes how each step ended."""

    campaign: Campaign
    settings: Settings
    serving: int | None = None
    """The recipe that is known to serve; None after a start, and after a failure, which may have
    taken the server with it."""

    def measure(self) -> None:
        steps = Steps(self.campaign, self.settings)
        for recipe, kind in self.campaign.pending():
            is_up = kind is StepKind.UP
            if is_up or (kind in SERVED and self.serving != recipe):
                self._serve(recipe, steps)
            if self.campaign.ended(recipe, kind) is None:
                self._say(recipe, kind)
                ended = _timed(kind, partial(steps.take, recipe, kind))
                if ended.ending != DONE:
                    self.serving = None
                self.campaign.end(recipe, ended)
            kinds = self.campaign.plan.recipes[recipe].kinds
            left = [it for it in kinds if self.campaign.ended(recipe, it) is None]
            if set(left) <= {StepKind.TUNE}:
                self._report()

    def _serve(self, recipe: int, steps: Steps) -> None:
        """Have the recipe serve; where it does not, its other steps are skipped.

        One that served before keeps the ending of its first `up`.
        """
        self._say(recipe, StepKind.UP)
        # An interrupted `up` may have replaced what served already.
        self.campaign.mark(HAS_SERVED)
        self.serving = None
        ended = _timed(StepKind.UP, partial(steps.serve, recipe))
        if ended.ending == DONE:
            self.serving = recipe
        if self.campaign.ended(recipe, StepKind.UP) is None:
            self.campaign.end(recipe, ended)
        if ended.ending != DONE:
            for kind in self.campaign.plan.recipes[recipe].kinds:
                if self.campaign.ended(recipe, kind) is None:
                    self.campaign.end(recipe, SharedStep(kind, SKIPPED, f"up: {ended.words}"))

    def put_back(self) -> None:
        campaign, settings = self.campaign, self.settings
        console.info(f"{self.position()} {PUT_BACK}")
        if not campaign.is_marked(HAS_SERVED):
            ended = SharedStep("put back", DONE, "nothing was replaced")
        else:
            name = campaign.plan.deployment
            work = partial(put_back, campaign.before, name, campaign.path, settings)
            ended = _timed("put back", work)
        if ended.ending != DONE:
            self._report(ended)
            raise BenchError(
                f"what served before was not put back: {ended.words}",
                hint=f"`{COMMAND} --stop` tries again; the report is {campaign.report}",
            )
        # First the page, then the word that all is done: what is killed between does both again.
        write_findings(campaign, settings, ended)
        (campaign.path / FILE).unlink(missing_ok=True)
        campaign.finish()

    def position(self) -> str:
        """Return which step comes, and of how many; putting back is one of them."""
        total = [*self.campaign.steps()]
        done = sum(self.campaign.ended(*step) is not None for step in total)
        return f"[{done + 1}/{len(total) + 1}]"

    def _report(self, put_back_step: SharedStep | None = None) -> None:
        """Write what there is by now; a page that cannot be written ends no campaign."""
        try:
            write_findings(self.campaign, self.settings, put_back_step)
        except SparkdeployError as error:
            console.warn(f"no report yet: {error.message}")

    def _say(self, recipe: int, kind: StepKind) -> None:
        console.info(f"{self.position()} {self.campaign.plan.recipes[recipe].name}: {kind.value}")


def _timed(step: str, work: Callable[[], str]) -> SharedStep:
    """Do a step; a failure is an ending like another, with its words."""
    started_s = time.monotonic()
    try:
        words, ending = work(), DONE
    except SparkdeployError as error:
        console.error(error.message, hint=error.hint, detail=error.detail)
        words, ending = error.message, FAILED
    except Exception as error:  # noqa: BLE001 - a bug in one step must not cost the whole night
        words, ending = f"unexpected {type(error).__name__}: {error}", FAILED
        console.error(words)
    line = " ".join(words.split())
    line = line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 3] + "..."
    return SharedStep(str(step), ending, line, round(time.monotonic() - started_s, 3))


def _go_on(campaign: Campaign, settings: Settings) -> None:
    run = CampaignRun(campaign, settings)
    try:
        if not campaign.is_marked(STOPPED):
            run.measure()
        run.put_back()
    except KeyboardInterrupt:
        console.warn(f"the campaign stops at step {run.position()}; {GO_ON}")
        raise


@contextlib.contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """One campaign at a time; a process that is killed frees the lock."""
    folder = campaigns_below(settings.state_dir)
    make_private(folder)
    descriptor = open_plain(folder / "lock")
    try:
        if not lock_within(descriptor, 0, lambda: None):
            raise BenchError(
                "a campaign is running already", hint="wait for it, or end it with Ctrl-C there"
            )
        yield
    finally:
        os.close(descriptor)
