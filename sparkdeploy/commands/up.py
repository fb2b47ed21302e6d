"""`up`: apply a plan, wait for the answer, and put everything back when none comes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.commands.checkpoint_fetch import bring_models
from sparkdeploy.commands.cluster_operate import leave_others
from sparkdeploy.commands.doctor import doctor_report
from sparkdeploy.commands.drafting import connect, draft_plan
from sparkdeploy.console import console
from sparkdeploy.deploy import recovery
from sparkdeploy.deploy import replace as replacing
from sparkdeploy.deploy.changing import SETTLE_WAIT_S, changing, crashes_dir, recover
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.expectation import expectation_of
from sparkdeploy.deploy.images import build_images
from sparkdeploy.deploy.interruptions import held_back
from sparkdeploy.deploy.memory import PageCache, make_room_for
from sparkdeploy.deploy.prepare import prepare_checkpoint, prepare_folders
from sparkdeploy.deploy.serving import answers, check_truth
from sparkdeploy.deploy.watch import Start, Watch
from sparkdeploy.errors import CheckpointError, SparkdeployError
from sparkdeploy.node.users import is_another, own_name
from sparkdeploy.plan.container import container_name
from sparkdeploy.plan.refusal import refuse_to_prepare, refuse_to_start
from sparkdeploy.plan.report import plan_lines
from sparkdeploy.plan.steps import Action, plan_as_dict
from sparkdeploy.server.health import ContainerDiedError
from sparkdeploy.server.phases import SPARK_COLD_START_S, TWIN_START_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sparkdeploy.commands.drafting import Request
    from sparkdeploy.deploy.expectation import Expectation
    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings


class Extent(Enum):
    """How far `up` goes."""

    PREPARE = "images and checkpoint only"
    DETACH = "start, and return at once"
    ANSWER = "start, and wait for the first answer"


@dataclass(frozen=True, slots=True)
class Handover:
    """What becomes of what was there before."""

    keep: int = 0
    """How many earlier containers of the deployment stay, stopped, for `rollback`."""
    page_cache: PageCache = PageCache.ASK


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `up` did."""

    plan: Plan
    base_url: str
    changed: bool
    readiness: Readiness | None = None
    """None when nothing was started, or nobody waited."""


@dataclass(frozen=True, slots=True)
class _Started:
    """A container that has been started, now or before, and has not been waited for yet."""

    plan: Plan
    container_id: str
    replacement: replacing.Replacement | None
    """None when it was there already."""


def up(
    resolved: Resolved,
    request: Request,
    settings: Settings,
    *,
    extent: Extent,
    consent: Callable[[str], bool],
    handover: Handover | None = None,
) -> Outcome:
    """Make the machine be what the recipe says.

    `consent` is asked before a model is downloaded and before a running deployment is replaced.
    The node's lock is held until the container runs, and again when it has answered or failed.
    Raises RecipeError, NodeError, BuildError, CheckpointError or UnhealthyError; after any of them
    the deployment that was there before is there again.
    """
    way = _Way(extent, consent, handover or Handover())
    begun: Outcome | _Started | None = None
    with connect(settings) as host:
        try:
            with changing(settings, _command(request)):
                recover(host, request.deployment.name, settings)
                begun = _begin(resolved, request, settings, host, way)
            if isinstance(begun, Outcome):
                outcome = begun
            else:
                outcome = _see_through(begun, request, settings, host)
        except KeyboardInterrupt:
            if isinstance(begun, _Started):
                _undo(begun, request, settings, host)
            raise
        if extent is Extent.ANSWER:
            _leave_cluster(request, settings, host)
    return outcome


def _undo(started: _Started, request: Request, settings: Settings, host: DockerHost) -> None:
    """Bring the old one back when Ctrl-C came after the start and before the wait."""
    if started.replacement is None or started.replacement.old_id is None:
        return
    with held_back(), changing(settings, _command(request), wait_s=SETTLE_WAIT_S):
        if started.replacement.is_in_place():
            recovery.abandon(
                host,
                request.deployment.name,
                crashes_dir=crashes_dir(settings),
                reason="it was interrupted before it was waited for",
            )


def _leave_cluster(request: Request, settings: Settings, host: DockerHost) -> None:
    """End on other nodes what this machine now serves alone under the same name."""
    name = request.deployment.name
    if not ClusterRecord.below(settings.state_dir).nodes(name):
        return
    with changing(settings, _command(request), wait_s=SETTLE_WAIT_S):
        fact = host.find_container(container_name(name))
        # Another command may have come between: an `up --cluster` keeps its nodes.
        if fact is not None and labels.NODES not in fact.labels:
            leave_others(name, settings)


@dataclass(frozen=True, slots=True)
class _Way:
    extent: Extent
    consent: Callable[[str], bool]
    handover: Handover


def _command(request: Request) -> str:
    return f"up {request.recipe} --name {request.deployment.name}"


def _begin(
    resolved: Resolved, request: Request, settings: Settings, host: DockerHost, way: _Way
) -> Outcome | _Started:
    """Do everything but the wait, under the node's lock."""
    refuse = refuse_to_prepare if way.extent is Extent.PREPARE else refuse_to_start
    plan = draft_plan(resolved, settings, host, request.deployment)
    refuse(plan)
    if bring_models(plan, settings, way.consent):
        plan = draft_plan(resolved, settings, host, request.deployment)
        refuse(plan)
    if way.extent is Extent.PREPARE:
        return _prepare(plan, host, settings)
    if not plan.has_work:
        console.info(f"nothing to do: {plan.deployment.name} runs as {_recipe(plan)} says")
        return _as_it_is(plan, host, way)
    return _deploy(plan, host, settings, way)


def _prepare(plan: Plan, host: DockerHost, settings: Settings) -> Outcome:
    _announce(plan)
    build_images(plan, host, settings)
    prepare_checkpoint(plan, settings)
    if plan.container.spec is not None:
        prepare_folders(plan, plan.container.spec)
    changed = plan.checkpoint.action.is_work or any(step.action.is_work for step in plan.images)
    return Outcome(plan, _base_url(plan), changed=changed)


def _as_it_is(plan: Plan, host: DockerHost, way: _Way) -> Outcome | _Started:
    """Nothing is to be changed; a deployment that still starts is waited for all the same."""
    found = find_deployment(host, plan.deployment.name)
    if found is None or found.serving is None or way.extent is not Extent.ANSWER:
        return Outcome(plan, _base_url(plan), changed=False)
    # One that was half replaced a moment ago may answer by now, and is not settled yet.
    if answers(found.serving) and not found.is_half_replaced:
        return Outcome(plan, _base_url(plan), changed=False)
    return _Started(plan, found.serving.container_id, None)


def _deploy(plan: Plan, host: DockerHost, settings: Settings, way: _Way) -> Outcome | _Started:
    _announce(plan)
    _ask(plan, way.consent)
    build_images(plan, host, settings)
    prepare_checkpoint(plan, settings)
    expected = expectation_of(plan)
    spec = _labelled(plan, expected, way.handover)
    prepare_folders(plan, spec)
    if plan.container.action is Action.REUSE:
        return Outcome(plan, _base_url(plan), changed=True)
    name, crashes = plan.deployment.name, crashes_dir(settings)
    recovery.abandon(
        host, name, crashes_dir=crashes, reason="another `up` took its place before it answered"
    )
    replacement = replacing.begin(
        host,
        spec,
        name,
        crashes_dir=crashes,
        before_start=lambda: make_room_for(host, name, expected.memory, way.handover.page_cache),
    )
    if way.extent is Extent.DETACH:
        return Outcome(plan, _base_url(plan), changed=True)
    return _Started(plan, replacement.container_id, replacement)


def _see_through(
    started: _Started, request: Request, settings: Settings, host: DockerHost
) -> Outcome:
    plan, name = started.plan, started.plan.deployment.name
    watch = Watch(_start_of(plan, request), host, settings)

    def wait(container_id: str) -> Readiness:
        readiness = watch.wait(container_id)
        check_truth(expectation_of(plan), readiness.facts)
        return readiness

    def settling() -> AbstractContextManager[None]:
        return changing(settings, _command(request), wait_s=SETTLE_WAIT_S)

    if started.replacement is None:
        try:
            readiness = wait(started.container_id)
        except ContainerDiedError as error:
            # The guard may have started it again, and it would look as if it came up.
            with settling():
                recovery.abandon(
                    host, name, crashes_dir=crashes_dir(settings), reason=error.message
                )
            raise
        finally:
            # What an `up --detach` left half replaced is finished, or reverted without an answer.
            with settling():
                recover(host, name, settings)
        return Outcome(plan, _base_url(plan), changed=False, readiness=readiness)
    try:
        readiness = replacing.see_through(
            started.replacement,
            wait=wait,
            changing=settling,
            details=lambda: {
                "plan": plan_as_dict(plan),
                "doctor": doctor_report(plan.resolved, settings),
                **watch.details(),
            },
        )
    except KeyboardInterrupt:
        console.warn(_after_interrupt(host, started))
        raise
    return Outcome(plan, _base_url(plan), changed=True, readiness=readiness)


def _start_of(plan: Plan, request: Request) -> Start:
    recipe = plan.resolved.recipe
    on_cpu = plan.resolved.engine.runs_on == "cpu"
    return Start(
        deployment=plan.deployment.name,
        command=_command(request),
        deadline_s=recipe.limits.startup_timeout_s,
        pace=f"{plan.images[-1].stage.tag} {recipe.name}",
        usual_s=TWIN_START_S if on_cpu else SPARK_COLD_START_S,
    )


def _announce(plan: Plan) -> None:
    for line in plan_lines(plan):
        console.info(line)


def _ask(plan: Plan, consent: Callable[[str], bool]) -> None:
    running = [
        item
        for item in plan.observed.containers
        if item.is_running and item.deployment == plan.deployment.name
    ]
    if plan.container.action is not Action.REPLACE or not running:
        return
    name = f"deployment {plan.deployment.name}{_of_another(running[0])}"
    if not consent(f"{name} is running and will be replaced ({plan.container.reason}). Go on?"):
        raise SparkdeployError(
            f"deployment {plan.deployment.name} was not replaced",
            hint="say yes, or pass --yes; another --name starts a second one beside it",
        )


def _of_another(fact: ContainerFact) -> str:
    """Users of one machine share its names: whoever replaces another's should know."""
    return f" of {fact.user}" if is_another(fact.user) else ""


def _labelled(plan: Plan, expected: Expectation, handover: Handover) -> ContainerSpec:
    """Return the spec with what the next plan and a rollback have to know on it."""
    spec = plan.container.spec
    if spec is None:
        raise CheckpointError("the model is not on this machine")
    own = {
        labels.FINGERPRINT: spec.fingerprint(),
        labels.KEEP: str(handover.keep),
        labels.EXPECTATION: expected.as_label(),
        labels.USER: own_name(),
    }
    return replace(spec, labels={**spec.labels, **own})


def _after_interrupt(host: DockerHost, started: _Started) -> str:
    name = started.plan.deployment.name
    found = find_deployment(host, name)
    if found is None or found.serving is None:
        return f"{name} was not started"
    if found.serving.container_id != started.container_id:
        return f"{name} was not replaced: the deployment that was there is starting again"
    return f"{name} goes on starting; `sparkdeploy status` and `sparkdeploy logs {name}` show it"


def _recipe(plan: Plan) -> str:
    return plan.resolved.recipe.name


def _base_url(plan: Plan) -> str:
    return f"http://127.0.0.1:{plan.resolved.recipe.serve.port}"
