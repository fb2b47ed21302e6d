"""`up`: apply a plan on its nodes, wait for the answer, and put everything back when none comes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkdeploy import labels
from sparkdeploy.commands.checkpoint_fetch import bring_models
from sparkdeploy.commands.known_image import ImagePolicy, Trial, with_known_image
from sparkdeploy.commands.reach import Reach, everyone, needed
from sparkdeploy.commands.remembered import request_label
from sparkdeploy.commands.replacing import ask_to_replace
from sparkdeploy.commands.request import as_started
from sparkdeploy.commands.stop import stop_locked
from sparkdeploy.console import console
from sparkdeploy.deploy.changing import (
    SETTLE_WAIT_S,
    changing,
    crashes_dir,
    held_back,
    starting_together,
)
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.expectation import expectation_of
from sparkdeploy.deploy.launch import Interruption, Launch, parts_elsewhere
from sparkdeploy.deploy.memory import PageCache, make_room_for
from sparkdeploy.deploy.recovery import abandon, end_start, recover
from sparkdeploy.deploy.serving import answers, remark_on_drafts
from sparkdeploy.deploy.watch import Watch, awaited_start, expected_silence, start_pace
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.node.facts import own_name
from sparkdeploy.node.node import named
from sparkdeploy.plan.container import container_name
from sparkdeploy.plan.draft import draft_plan
from sparkdeploy.plan.problems import (
    ownership_problems,
    refuse_to_prepare,
    refuse_to_start,
)
from sparkdeploy.plan.report import plan_lines
from sparkdeploy.plan.steps import Action, awaited_preparation, plan_as_dict
from sparkdeploy.recipe.report import values_to_show
from sparkdeploy.server.health import ContainerDiedError
from sparkdeploy.server.phases import SPARK_COLD_START_S, TWIN_START_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sparkdeploy.commands.request import Request
    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.plan.steps import Part, Plan
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings


_CONTAINERS = {
    Action.REUSE: "starting the containers of other nodes",
    Action.START: "making the container",
    Action.REPLACE: "replacing the old container",
}
_AGAIN = "starting the stopped container again"


class Extent(Enum):
    PREPARE = "images and checkpoint only"
    DETACH = "start, and return at once"
    ANSWER = "start, and wait for the first answer"


@dataclass(frozen=True, slots=True)
class Handover:
    keep: int = 0
    """How many earlier containers of the deployment stay, stopped, for `rollback`."""
    page_cache: PageCache = PageCache.ASK
    images: ImagePolicy = ImagePolicy.KEEP
    interruption: Interruption = Interruption.GOES_ON


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    changed: bool
    readiness: Readiness | None = None
    """None when nothing was started, or nobody waited."""
    silence_s: float | None = None
    """From the end of what was replaced to the first answer; None where nothing ran before."""
    drafting: str = ""
    """What is wrong with the drafts of one that answers; one just started has drafted little."""


def up(
    resolved: Resolved,
    request: Request,
    settings: Settings,
    *,
    extent: Extent,
    consent: Callable[[str], bool],
    handover: Handover | None = None,
) -> Outcome:
    """Make one machine, or several together, be what the recipe says.

    `consent` is asked before a model is downloaded and before a running deployment is replaced.
    The node's lock is held until the containers run, and again when they have answered or failed.
    Raises RecipeError, NodeError, BuildError, CheckpointError or UnhealthyError; after any of them,
    and after an interruption, the deployment that was there before is there again on every node
    that answers. Without one before, an interrupted start goes on, or is stopped (`Interruption`).
    """
    together = needed(resolved, request.reach, settings)
    name = request.deployment.name
    with everyone(settings, name, together) as nodes:
        serving = nodes.only(together) if request.reach is Reach.CLUSTER else nodes.alone()
        # Made before anything is begun: whatever interrupts finds here how far it came.
        launch = Launch(name, crashes_dir(settings), ClusterRecord.below(settings.state_dir))
        given = handover or Handover()
        asked = resolved.image if given.images is ImagePolicy.UPDATE else None
        trial = Trial(settings, asked)
        how = (extent, consent, given, trial)
        with console.steps():
            return _Up(resolved, request, settings, nodes, serving, launch, *how).apply()


@dataclass(frozen=True, slots=True)
class _Up:
    """One `up`, with what it was asked for and what it has begun."""

    resolved: Resolved
    request: Request
    settings: Settings
    nodes: Nodes
    serving: Nodes
    launch: Launch
    extent: Extent
    consent: Callable[[str], bool]
    handover: Handover
    trial: Trial

    @property
    def name(self) -> str:
        return self.launch.deployment

    def apply(self) -> Outcome:
        try:
            with self.trial.told():
                with changing(self.settings, self._command):
                    self.serving.require_all()
                    recover(self.nodes, self.name, self.settings)
                    plan, is_starting = self._begin()
                outcome = self._finish(plan, is_starting)
        except KeyboardInterrupt:
            try:
                self.launch.undo(self._settling)
            finally:
                # A second Ctrl-C is heard when all is undone, and what became of it is said still.
                with held_back():
                    if self.launch.begun:
                        console.warn(self._after_interrupt())
            raise
        return self._with_drafts(outcome)

    @property
    def _command(self) -> str:
        reach = " --cluster" if self.request.reach is Reach.CLUSTER else ""
        return f"up {self.request.recipe}{reach} --name {self.name}"

    def _settling(self) -> AbstractContextManager[None]:
        return changing(self.settings, self._command, wait_s=SETTLE_WAIT_S)

    def _begin(self) -> tuple[Plan, bool]:
        """Do everything but the wait; return the plan, and whether something starts already."""
        starts = self.extent is not Extent.PREPARE
        refuse = refuse_to_start if starts else refuse_to_prepare
        plan = self._draft(self._now())
        refuse(plan)
        known = self._with_known_image(plan)
        if known is not plan.resolved:
            plan = self._draft(known)
            refuse(plan)
        self._announce(plan)
        if bring_models(plan, self.settings, self.consent):
            plan = self._draft(known)
            refuse(plan)
            self._announce(plan)
        if starts and not plan.has_work:
            where = "" if plan.formation.is_alone else " on every node"
            recipe = plan.resolved.recipe.name
            console.info(f"nothing to do: {self.name} runs{where} as {recipe} says")
            is_starting = self._is_starting()
            if self.extent is Extent.ANSWER and not is_starting:
                self.trial.succeed()
            return plan, is_starting
        console.info_blocks(plan_lines(plan))
        if starts:
            ask_to_replace(plan, self.consent, expected_silence(pace_of(plan), self.settings))
        # The usual `up` has nothing to prepare, and is there sooner without all that builds.
        from sparkdeploy.deploy.inside import refuse_blind  # noqa: PLC0415
        from sparkdeploy.deploy.prepare import prepare  # noqa: PLC0415

        prepare(plan, self.serving, self.settings)
        if starts and any(part.action.is_work for part in plan.parts):
            refuse_blind(plan, self.serving)
            self._start(plan)
        if not starts:
            self.trial.succeed()
        elif self.extent is Extent.DETACH:
            self.trial.tell_pending()
        return plan, False

    def _announce(self, plan: Plan) -> None:
        """Say on a terminal what is going to be done; a start that runs already is waited for."""
        console.expect(*awaited_preparation(plan))
        if self.extent is Extent.ANSWER and plan.has_work:
            console.expect(awaited_start(self.name, pace_of(plan), self.settings))

    def _now(self) -> Resolved:
        """Return the recipe for what its tag is by now: what was found half done was settled."""
        if self.handover.images is ImagePolicy.UPDATE:
            return self.resolved
        docker = self.serving.here.docker
        resolved, self.trial.new = as_started(self.resolved, self.request, self.settings, docker)
        return resolved

    def _with_known_image(self, plan: Plan) -> Resolved:
        docker, policy = self.serving.here.docker, self.handover.images
        known = with_known_image(plan, self.request, self.settings, docker, policy)
        if known.resolved is not plan.resolved:
            self.trial.new = known.new
        return known.resolved

    def _draft(self, resolved: Resolved) -> Plan:
        return draft_plan(resolved, self.settings, self.serving, self.request.deployment)

    def _start(self, plan: Plan) -> None:
        """Start all parts together: a rank that is left over from before cannot join anew."""
        parts = [
            (self.serving.node(seat.node), self._comes(plan, plan.parts[seat.rank]))
            for seat in plan.formation.start_order
        ]
        claims = {part.node: part.claim for part in plan.parts}

        def make_room(node: Node) -> None:
            make_room_for(node, self.name, claims[node.name], self.handover.page_cache)

        with starting_together(self.serving, self.settings, self._command):
            self._require_free(plan)
            reason = "another `up` took its place before it answered"
            end_start(self.nodes, self.name, self.settings, reason=reason)
            leaving = parts_elsewhere(self.nodes, self.name, plan.formation.nodes)
            is_again = plan.head.stopped is not None
            doing = _AGAIN if is_again else _CONTAINERS[plan.head.action]
            with console.drawn_step(doing):
                self.launch.start(parts, make_room, leaving)

    def _comes(self, plan: Plan, part: Part) -> ContainerSpec | ContainerFact:
        return part.stopped if part.stopped is not None else self._labelled(plan, part)

    def _labelled(self, plan: Plan, part: Part) -> ContainerSpec:
        """Return the spec with what the next plan and a rollback have to know on it."""
        if part.spec is None:
            raise CheckpointError(f"the model is not on {part.node}")
        own = {
            labels.FINGERPRINT: part.spec.fingerprint(),
            labels.KEEP: str(self.handover.keep),
            labels.EXPECTATION: expectation_of(plan, part).as_label(),
            labels.USER: own_name(),
            labels.REQUEST: request_label(self.request, self.settings),
            labels.RECIPE_VALUES: json.dumps(values_to_show(plan.resolved.recipe)),
        }
        if self.trial.new is not None:
            own[labels.NEW_MEANING] = self.trial.new.as_label()
        return replace(part.spec, labels={**part.spec.labels, **own})

    def _require_free(self, plan: Plan) -> None:
        """Another head may have come while images and weights travelled."""
        if plan.formation.is_alone:
            return
        seen = tuple(
            replace(node, containers=self.serving.node(node.facts.name).docker.own_containers())
            for node in plan.observed.nodes
        )
        again = replace(plan, observed=replace(plan.observed, nodes=seen))
        refuse_to_start(replace(plan, problems=tuple(ownership_problems(again))))

    def _is_starting(self) -> bool:
        """Say whether the deployment that is as planned has not been settled or does not answer."""
        found = find_deployment(self.serving.here.docker, self.name)
        if found is None or found.serving is None or self.extent is not Extent.ANSWER:
            return False
        # One that was half replaced a moment ago may answer by now, and is not settled yet.
        return found.is_half_replaced or not answers(found.serving)

    def _finish(self, plan: Plan, is_starting: bool) -> Outcome:
        if is_starting:
            return Outcome(plan, changed=False, readiness=self._wait_for_what_starts(plan))
        changed = plan.has_work if self.extent is not Extent.PREPARE else plan.prepares
        if self.extent is not Extent.ANSWER or not self.launch.begun:
            return Outcome(plan, changed=changed)
        watch = self._watch(plan, self.launch.started)
        readiness = self.launch.wait_and_settle(
            watch.wait, self._settling, partial(self._details, plan, watch), self.trial.succeed
        )
        return Outcome(plan, True, readiness, self.launch.silence_s)

    def _wait_for_what_starts(self, plan: Plan) -> Readiness:
        found = {}
        for part in plan.parts:
            node = self.serving.node(part.node)
            with named(node):
                fact = node.docker.find_container(container_name(self.name))
            if fact is None:
                raise NodeError(f"{node.name}: the container of {self.name} is gone")
            found[node] = fact.container_id
        try:
            return self._watch(plan, found).wait()
        except ContainerDiedError as error:
            # The guard may have started it again, and it would look as if it came up.
            host, crashes = self.nodes.here.docker, crashes_dir(self.settings)
            with self._settling():
                abandon(host, self.name, crashes_dir=crashes, reason=error.message)
            raise
        except KeyboardInterrupt:
            self._stops_it()
            raise
        finally:
            # What an `up --detach` left half replaced is finished, or reverted without an answer.
            with held_back(), self._settling():
                recover(self.nodes, self.name, self.settings)

    def _with_drafts(self, outcome: Outcome) -> Outcome:
        if self.extent is not Extent.ANSWER:
            return outcome
        found = find_deployment(self.nodes.here.docker, self.name)
        if found is None or found.serving is None:
            return outcome
        return replace(outcome, drafting=remark_on_drafts(found.serving, self.settings))

    def _watch(self, plan: Plan, parts: dict[Node, str]) -> Watch:
        recipe = plan.resolved.recipe
        on_cpu = plan.resolved.engine.runs_on == "cpu"
        skews = {
            node.facts.name: node.facts.fabric.clock_skew_s
            for node in plan.observed.nodes
            if node.facts.fabric is not None
        }
        return Watch(
            deployment=self.name,
            command=self._command,
            deadline_s=recipe.limits.startup_timeout_s,
            pace=pace_of(plan),
            parts=parts,
            settings=self.settings,
            usual_s=TWIN_START_S if on_cpu else SPARK_COLD_START_S,
            clock_skews_s=skews,
        )

    def _details(self, plan: Plan, watch: Watch) -> dict[str, Any]:
        from sparkdeploy.commands.doctor import doctor_report  # noqa: PLC0415 - for failures only

        report: dict[str, Any]
        try:
            report = doctor_report(plan.resolved, self.settings, plan)
        except Exception as error:  # noqa: BLE001 - a bug in it must not keep the old one down
            report = {"not_seen": repr(error)}
        return {"plan": plan_as_dict(plan), "doctor": report, **watch.details()}

    def _stops_it(self) -> bool:
        """Stop what would go on starting, where it is not to; say whether it was so."""
        if self.handover.interruption is Interruption.GOES_ON:
            return False
        with held_back(), self._settling():
            stop_locked(self.nodes, self.name, self.settings)
        return True

    def _after_interrupt(self) -> str:
        found = find_deployment(self.nodes.here.docker, self.name)
        ours = {replacement.new_id for _, replacement in self.launch.begun}
        if found is None or found.serving is None:
            return f"{self.name} was not started"
        if found.serving.container_id not in ours:
            return f"{self.name} was not replaced: the deployment that was there is starting again"
        if self._stops_it():
            return f"{self.name} was stopped before it answered"
        look = f"`sparkdeploy status` and `sparkdeploy logs {self.name}`"
        return f"{self.name} goes on starting; {look} show it"


def pace_of(plan: Plan) -> str:
    """Return the key under which the durations of such starts are remembered."""
    return start_pace(
        plan.images[-1].stage.tag, plan.resolved.recipe.name, len(plan.formation.nodes)
    )
