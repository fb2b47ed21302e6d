"""`up`: apply a plan on its nodes, wait for the answer, and put everything back when none comes.

The usual one has nothing to do: what only a start needs is loaded where it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING
from uuid import uuid4

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import deployments_in, find_deployment
from sparkdeploy.deploy.launch import Launch, Rank
from sparkdeploy.deploy.lock import defer_signals, naming, ranks_lock
from sparkdeploy.deploy.nodes import connect_nodes, needed_nodes
from sparkdeploy.deploy.recovery import end_start, is_half_done, recover
from sparkdeploy.deploy.request import Request, as_label, bring_models, with_known_image
from sparkdeploy.deploy.serving import answers
from sparkdeploy.errors import CheckpointError, NodeError, SparkdeployError
from sparkdeploy.node.facts import is_another, own_name
from sparkdeploy.plan.make import decide, decide_again, draft_plan
from sparkdeploy.plan.preflight import refuse_to_prepare, refuse_to_start
from sparkdeploy.plan.steps import Action, NodePlan, Plan, awaited_preparation
from sparkdeploy.recipe.answers import TEXT, Answers
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.node.node import Nodes
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings

Confirm = Callable[[str], bool]
_STEPS = {
    Action.REUSE: "starting the containers of other nodes",
    Action.START: "making the container",
    Action.REPLACE: "replacing the old container",
}


class Extent(Enum):
    PREPARE = "images and checkpoint only"
    DETACH = "start, and return at once"
    ANSWER = "start, and wait for the first answer"


@dataclass(frozen=True, slots=True)
class UpOptions:
    extent: Extent = Extent.ANSWER
    drop_page_cache: bool = False
    update_image: bool = False
    image_id: str | None = None
    """Of an image of this machine that the recipe's is taken for from now on."""
    shows_plan: bool = True
    is_unit: bool = False
    """Stop a start that replaced nothing when it is interrupted: systemd runs no ExecStop= of a
    unit that is not up yet. Otherwise it goes on. And download no model: its disk may be late."""


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    changed: bool
    readiness: Readiness | None = None
    downtime_s: float | None = None
    """From the end of what was replaced to the first answer; None where nothing ran before."""
    is_answering: bool = False
    """Whether the server has answered this command."""
    answers: Answers = TEXT


def up(
    resolved: Resolved,
    request: Request,
    settings: Settings,
    *,
    confirm: Confirm,
    options: UpOptions | None = None,
) -> Outcome:
    """Make one machine, or several together, be what the recipe says.

    `confirm` is asked before downloads and replacements, and nothing waits under the node's lock.
    After an error or an interruption what was there before is there again.
    """
    options = options or UpOptions()
    name, prepares_only = request.deployment.name, options.extent is Extent.PREPARE
    command = f"up {request.recipe}{' --cluster' if request.cluster else ''} --name {name}"
    needed = needed_nodes(resolved, settings) if request.cluster else frozenset()
    with connect_nodes(settings, name, needed) as nodes, console.steps():
        launch = Launch(nodes, name, settings, command, options.drop_page_cache)
        ranks = nodes.only(needed) if request.cluster else nodes.alone()
        ranks.require_all()
        try:
            if is_half_done(launch):
                with launch.lock():
                    recover(launch, launch.find_here())
            plan = _decide(resolved, request, settings, ranks, confirm, options)
            if not prepares_only and not plan.has_work:
                return _nothing_to_do(plan, launch, options)
            from sparkdeploy.deploy.wait import Watch  # noqa: PLC0415
            from sparkdeploy.plan.report import plan_lines  # noqa: PLC0415
            from sparkdeploy.server.phases import start_words  # noqa: PLC0415

            if options.shows_plan:
                console.info_blocks(plan_lines(plan, start_words(plan, settings.state_dir)))
            if not prepares_only:
                _confirm_replacement(plan, confirm, settings)
            with naming(plan, launch):
                _prepare(plan, ranks, settings)
                if prepares_only:
                    return Outcome(plan, changed=plan.prepares)
                if any(planned.action.is_work for planned in plan.nodes):
                    _replace(plan, ranks, launch, as_label(request, settings))
            if options.extent is Extent.DETACH or not launch.begun:
                return Outcome(plan, changed=True)
            deadline_s = plan.resolved.recipe.limits.startup_timeout_s
            watch = Watch(launch, launch.started, plan.timing_key, deadline_s, plan)
            readiness = launch.wait_and_commit(watch)
        except KeyboardInterrupt:
            _undo(launch, options)
            raise
    return Outcome(plan, True, readiness, launch.downtime_s, True, watch.answers)


def _decide(
    resolved: Resolved,
    request: Request,
    settings: Settings,
    ranks: Nodes,
    confirm: Confirm,
    options: UpOptions,
) -> Plan:
    """Return a plan with its image pinned and its models here; NodeError with all its problems."""
    refuse = refuse_to_prepare if options.extent is Extent.PREPARE else refuse_to_start
    plan = draft_plan(resolved, settings, ranks, request.deployment)
    refuse(plan)
    docker = ranks.here.docker
    pinned = with_known_image(
        plan, request, settings, docker, update=options.update_image, image_id=options.image_id
    )
    if pinned is not plan.resolved:
        plan = decide(pinned, settings, plan.observed, plan.deployment, plan.topology)
        refuse(plan)
    _announce(plan, settings, options)
    if bring_models(plan, settings, confirm, may_download=not options.is_unit):
        plan = decide_again(plan, settings, ranks)
        refuse(plan)
        _announce(plan, settings, options)
    return plan


def _announce(plan: Plan, settings: Settings, options: UpOptions) -> None:
    console.expect(*awaited_preparation(plan))
    if options.extent is Extent.ANSWER and plan.has_work:
        from sparkdeploy.deploy.wait import awaited_start  # noqa: PLC0415

        console.expect(awaited_start(plan.deployment.name, plan.timing_key, settings))


def _confirm_replacement(plan: Plan, confirm: Confirm, settings: Settings) -> None:
    """Raise SparkdeployError when something runs that the plan replaces, and nobody consents."""
    replaced = [planned for planned in plan.nodes if planned.action is Action.REPLACE]
    seen = (plan.observed.node(planned.node) for planned in replaced)
    facts = (node.container(plan.deployment.name) for node in seen if node is not None)
    running = [fact for fact in facts if fact is not None and fact.is_running]
    if not running:
        return
    from sparkdeploy.server.phases import expected_start  # noqa: PLC0415

    # Users of one machine share its names: whoever replaces another's should know.
    user = running[0].user
    name = f"deployment {plan.deployment.name}{f' of {user}' if is_another(user) else ''}"
    console.info(f"downtime: {expected_start(settings.state_dir, plan.timing_key)}")
    if not confirm(f"{name} is running and will be replaced ({replaced[0].reason}). Go on?"):
        raise SparkdeployError(
            f"deployment {plan.deployment.name} was not replaced",
            hint="say yes, or pass --yes; another --name starts a second one beside it",
        )


def _prepare(plan: Plan, ranks: Nodes, settings: Settings) -> None:
    from sparkdeploy.deploy.expectation import require_rdma  # noqa: PLC0415
    from sparkdeploy.deploy.prepare import prepare  # noqa: PLC0415

    prepare(plan, ranks, settings)
    if any(planned.action.is_work for planned in plan.nodes):
        require_rdma(plan, ranks)


def _replace(plan: Plan, ranks: Nodes, launch: Launch, typed: str) -> None:
    """Start all ranks together: a rank that is left over from before cannot join anew."""
    # What starts together is known by it; what was kept has the mark of its own launch.
    group = {} if plan.topology.is_alone else {labels.LAUNCH: uuid4().hex}
    mark = {labels.REQUEST: typed, **group}
    planned_ranks = [plan.nodes[rank.number] for rank in plan.topology.start_order]
    starts = [
        Rank(ranks.node(it.node), _to_start(plan, it, mark), it.claim) for it in planned_ranks
    ]
    with launch.lock(), ranks_lock(ranks, launch.command):
        # Memory is promised to other deployments meanwhile: the one list that needs the lock.
        for node in launch.nodes:
            node.forget_listing()
        _require_unchanged(plan, ranks)
        if is_half_done(launch):
            reason = "another `up` took its place before it answered"
            end_start(launch, launch.find_here(), reason=reason)
        is_again = plan.head.stopped is not None
        step = "starting the stopped container again" if is_again else _STEPS[plan.head.action]
        with console.drawn_step(step):
            launch.start(starts)


def _require_unchanged(plan: Plan, ranks: Nodes) -> None:
    """Raise NodeError when another command changed the deployment since the plan was made."""
    for seen in plan.observed.nodes:
        node = ranks.node(seen.facts.name)
        found = deployments_in(node.listing).get(plan.deployment.name)
        facts = (seen.container(plan.deployment.name), found.serving if found is not None else None)
        then, now = ((it.container_id, it.is_running) if it is not None else None for it in facts)
        if then != now:
            where = "" if node.is_here else f"{node.name}: "
            raise NodeError(
                f"{where}another command changed {plan.deployment.name} while this one prepared",
                hint="`sparkdeploy status` shows what is there now; run it again",
            )


def _to_start(
    plan: Plan, planned: NodePlan, mark: Mapping[str, str]
) -> ContainerSpec | ContainerFact:
    """Return the stopped container that starts again, or the spec with its last labels."""
    from sparkdeploy.deploy.expectation import expectation_of  # noqa: PLC0415
    from sparkdeploy.recipe.report import values_to_show  # noqa: PLC0415

    if planned.stopped is not None:
        return planned.stopped
    if planned.spec is None:
        raise CheckpointError(f"the model is not on {planned.node}")
    own = {
        **mark,
        labels.FINGERPRINT: planned.spec.fingerprint(),
        labels.EXPECTATION: expectation_of(plan, planned).as_label(),
        labels.TIMING: plan.timing_key,
        labels.USER: own_name(),
        labels.RECIPE_VALUES: json.dumps(values_to_show(plan.resolved.recipe)),
    }
    return replace(planned.spec, labels={**planned.spec.labels, **own})


def _nothing_to_do(plan: Plan, launch: Launch, options: UpOptions) -> Outcome:
    """Wait for what starts already; otherwise ask whether what runs answers."""
    where = "" if plan.topology.is_alone else " on every node"
    name = launch.deployment
    console.info(f"nothing to do: {name} runs{where} as {plan.resolved.recipe.name} says")
    if options.extent is not Extent.ANSWER:
        return Outcome(plan, changed=False)
    found = launch.find_here()
    if found is None or found.serving is None:
        raise NodeError(f"{name} was stopped or replaced by another command")
    if not found.is_half_replaced and answers(found.serving):
        seen = launch.record.answers(found.serving)
        return Outcome(plan, changed=False, is_answering=True, answers=seen)
    from sparkdeploy.deploy.lifecycle import wait_for_running  # noqa: PLC0415

    try:
        readiness = wait_for_running(launch, found.serving)
    except KeyboardInterrupt:
        _stop_if_wanted(launch, options)
        raise
    seen = launch.record.answers(found.serving)
    return Outcome(plan, False, readiness, is_answering=True, answers=seen)


def _undo(launch: Launch, options: UpOptions) -> None:
    """Bring back what was replaced after an interruption, and say what became of the start."""
    try:
        launch.undo()
    finally:
        # A second Ctrl-C is raised when all is undone and said.
        with defer_signals():
            if launch.begun:
                console.warn(_outcome_of_interrupt(launch, options))


def _outcome_of_interrupt(launch: Launch, options: UpOptions) -> str:
    name = launch.deployment
    found = find_deployment(launch.nodes.here.docker, name)
    if found is None or found.serving is None:
        return f"{name} was not started"
    if found.serving.container_id not in {it.new_id for it in launch.begun}:
        return f"{name} was not replaced: the deployment that was there is starting again"
    if _stop_if_wanted(launch, options):
        return f"{name} was stopped before it answered"
    commands = f"`sparkdeploy status` and `sparkdeploy logs {name}`"
    return f"{name} goes on starting; {commands} show it"


def _stop_if_wanted(launch: Launch, options: UpOptions) -> bool:
    if options.is_unit:
        from sparkdeploy.deploy.lifecycle import stop_locked  # noqa: PLC0415

        with defer_signals(), launch.lock():
            stop_locked(launch)
    return options.is_unit
