"""`update`: what this version would do to each deployment, by the very plan that `up` applies."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import __version__, labels
from sparkdeploy.commands.installation import Installation, this_installation
from sparkdeploy.commands.reach import connect
from sparkdeploy.commands.remembered import request_again, typed_before
from sparkdeploy.commands.request import plan_for, up_words
from sparkdeploy.commands.up import pace_of
from sparkdeploy.console import format_seconds
from sparkdeploy.deploy.deployments import list_deployments
from sparkdeploy.deploy.watch import last_start_s
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.facts import is_another
from sparkdeploy.server.phases import recall_similar
from sparkdeploy.settings import ON_VARIABLE
from sparkdeploy.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.commands.remembered import TypedBefore
    from sparkdeploy.deploy.deployments import DeploymentContainers
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings


class Effect(Enum):
    SAME = "same: nothing to do"
    BUILD = "images are rebuilt, and it starts again"
    RESTART = "restart needed"
    PREPARE = "is prepared, and goes on running"
    REFUSED = "`up` would refuse it"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True, slots=True)
class Effects:
    """What `up` would do to one deployment, and why."""

    deployment: str
    recipe: str
    made_by: str
    """The version of sparkdeploy that started it."""
    effect: Effect
    reasons: tuple[str, ...] = ()
    up: tuple[str, ...] = ()
    """The words that would do it; none where nothing is to be done."""
    start_s: float | None = None
    """What its last start took; None where nobody has seen one."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    installation: Installation
    deployments: tuple[Effects, ...] = ()
    unobserved: str = ""
    """Why deployments were not seen."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "version": __version__,
            "installed_by": self.installation.by,
            "update": self.installation.update,
            "deployments": [
                {**asdict(it), "effect": it.effect.name.lower()} for it in self.deployments
            ],
            "unobserved": self.unobserved or None,
        }


def update_report(settings: Settings) -> UpdateReport:
    """Look at every deployment of this machine; change nothing."""
    brought_by = os.environ.get(ON_VARIABLE)
    installation = this_installation(Path(sys.prefix), brought_by=brought_by)
    try:
        with connect(settings) as host:
            found = list_deployments(host)
    except NodeError as error:
        return UpdateReport(installation, unobserved=error.message)
    return UpdateReport(installation, tuple(_effects(it, settings) for it in found))


def _effects(found: DeploymentContainers, settings: Settings) -> Effects:
    fact = found.current
    known = (found.name, _told(fact, labels.RECIPE), _told(fact, labels.VERSION))
    typed = typed_before(fact)
    if why := _untold_because(found, typed):
        return Effects(*known, Effect.UNKNOWN, (why,))
    request = request_again(fact, typed)
    try:
        plan = plan_for(request, settings)
    except SparkdeployError as error:
        return Effects(*known, Effect.UNKNOWN, (error.message,))
    effect, reasons = effect_of(plan)
    if effect is Effect.SAME:
        return Effects(*known, effect)
    if typed is None:
        reasons = (*reasons, "by the recipe's name alone: what else was typed was not kept then")
    return Effects(*known, effect, reasons, tuple(up_words(request)), _start_s(plan, settings))


def _untold_because(found: DeploymentContainers, typed: TypedBefore | None) -> str:
    """Say why a plan made here would be another than that of its `up`; empty where it is none."""
    fact = found.current
    if found.is_of_another_head:
        return f"{fact.nodes[0]} heads it: ask there"
    if is_another(fact.user):  # a plan made here has the caller's folders and key
        return f"{fact.user} deployed it: `sparkdeploy update` of that user tells"
    if typed is not None and typed.is_rehearsal:
        return "a rehearsal: `rehearse` makes it anew"
    if typed is not None and typed.left_out:
        return f"the value of --set {' and '.join(typed.left_out)} is kept nowhere"
    return ""


def effect_of(plan: Plan) -> tuple[Effect, tuple[str, ...]]:
    """Return what applying a plan does to what runs, and the plan's own reasons."""
    if not plan.has_work:
        return Effect.SAME, ()
    if plan.problems:
        return Effect.REFUSED, tuple(problem.message for problem in plan.problems)
    builds = [step for step in plan.images if step.action.is_work]
    reasons = [f"image {step.stage.name}: {step.reason}" for step in builds]
    if plan.checkpoint.action.is_work:
        reasons.append(f"checkpoint: {plan.checkpoint.reason}")
    restarts = [part for part in plan.parts if part.action.is_work]
    if not restarts:
        return Effect.PREPARE, tuple(reasons)
    # A new image is the reason why a part that stands on it starts again.
    reasons += dict.fromkeys(part.reason for part in restarts if not builds)
    return Effect.BUILD if builds else Effect.RESTART, tuple(reasons)


def update_lines(report: UpdateReport) -> Iterator[str]:
    """Yield a line a deployment, with its reasons and its command beneath."""
    yield f"sparkdeploy {__version__}, installed by {report.installation.by}"
    yield f"a newer version: {report.installation.update}"
    if report.unobserved:
        yield f"deployments were not seen: {report.unobserved}"
    elif not report.deployments:
        yield "nothing is deployed"
    for row in report.deployments:
        took = f" (its last start took {format_seconds(row.start_s)})" if row.start_s else ""
        made_by = f"{row.recipe} by {row.made_by or 'an unknown version'}"
        yield f"{row.deployment} ({made_by}): {row.effect.value}{took}"
        yield from (f"  {reason}" for reason in row.reasons)
        if row.up and row.effect is not Effect.REFUSED:
            yield f"  {shlex.join(('sparkdeploy', *row.up))}"


def _told(fact: ContainerFact, label: str) -> str:
    """Anybody may write a label."""
    return visible_line(fact.labels.get(label, ""))[:80]


def _start_s(plan: Plan, settings: Settings) -> float | None:
    pace = pace_of(plan)
    return last_start_s(pace, settings) or recall_similar(settings.state_dir, pace)
