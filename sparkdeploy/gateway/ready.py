"""Make a stack ready: images and weights of all its models, and what is always kept started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import deployments_in
from sparkdeploy.deploy.lifecycle import stop
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.request import resolve
from sparkdeploy.deploy.up import Extent, UpOptions, up
from sparkdeploy.errors import CheckpointError, SparkdeployError
from sparkdeploy.gateway.plans import naming
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.deploy.up import Confirm, Outcome
    from sparkdeploy.gateway.plans import PlannedModel, StackPlan
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Ready:
    """What `up` of a stack has done, by model."""

    prepared: tuple[str, ...]
    started: dict[str, Outcome]


def up_stack(
    plan: StackPlan,
    settings: Settings,
    *,
    confirm: Confirm,
    starts: bool = True,
    drop_page_cache: bool = False,
) -> Ready:
    """Prepare every model by the code of `up --prepare`, then start what is always kept.

    The plan is one that nothing stands in the way of. Interrupted, what is done stays done, and
    the next one goes on. Raises what `up` raises, with the model's name.
    """
    to_prepare = [it for it in plan.members if it.plan.prepares]
    agreed = _confirmed_downloads(plan, confirm)
    for member in to_prepare:
        console.info(f"preparing {member.model.name}")
        _up(member, settings, agreed, UpOptions(Extent.PREPARE))
    started = {}
    for member in plan.always if starts else ():
        _make_room(plan, member, settings, confirm)
        how = UpOptions(drop_page_cache=drop_page_cache)
        started[member.model.name] = _up(member, settings, confirm, how)
    return Ready(tuple(it.model.name for it in to_prepare), started)


def start_model(member: PlannedModel, settings: Settings) -> Outcome:
    """Start one model as `up` does with what is prepared, and wait for its first answer.

    The very container that was stopped starts again where it is what the stack says. Raises
    CheckpointError where something would have to be downloaded, and what `up` raises.
    """
    return _up(member, settings, lambda _question: False, UpOptions())


def _up(member: PlannedModel, settings: Settings, confirm: Confirm, how: UpOptions) -> Outcome:
    with naming(member.model.name):
        resolved = resolve(member.request, settings)
        return up(resolved, member.request, settings, confirm=confirm, options=how)


def _confirmed_downloads(plan: StackPlan, confirm: Confirm) -> Confirm:
    """Ask once for all that is to be fetched; where a size is unknown each model asks for itself.

    Raises CheckpointError when nobody agrees.
    """
    size = plan.download_bytes
    missing = {it.repo for member in plan.members for it in member.plan.observed.missing}
    if size is None or not missing:
        return confirm
    names, told = ", ".join(sorted(missing)), format_bytes(size)
    if not confirm(f"Download {names} ({told})?"):
        raise CheckpointError(
            f"{names}: not on this machine ({told} to download)", hint="say yes, or pass --yes"
        )
    return lambda _question: True


def _make_room(plan: StackPlan, wanted: PlannedModel, settings: Settings, confirm: Confirm) -> None:
    """Stop what runs of the stack and does not fit beside a model that is always kept."""
    running = running_models(plan, settings)
    name = wanted.model.name
    victims: Sequence[str] = plan.fit.cheapest_eviction(running - {name}, name) or ()
    if name in running or not victims:
        return
    if not confirm(f"Stop {' and '.join(victims)}, which {name} does not fit beside?"):
        raise SparkdeployError(
            f"{name} was not started: it does not fit beside {' and '.join(victims)}",
            hint="say yes, or pass --yes",
        )
    for victim in victims:
        stop(victim)


def running_models(plan: StackPlan, settings: Settings) -> set[str]:
    """Return which models of a stack have a container that runs on this machine."""
    with connect(settings) as host:
        found = deployments_in(host.own_containers())
    serving = {name: it.serving for name, it in found.items()}
    return {
        it.model.name
        for it in plan.members
        if (fact := serving.get(it.model.name)) is not None and fact.is_running
    }
