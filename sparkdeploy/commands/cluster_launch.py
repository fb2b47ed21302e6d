"""Start the containers of a launch in order, watch them as one, undo all of it together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from sparkdeploy import labels
from sparkdeploy.commands.cluster_recovery import end_start
from sparkdeploy.commands.up import Extent
from sparkdeploy.console import console
from sparkdeploy.deploy import replace
from sparkdeploy.deploy.changing import crashes_dir
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.expectation import expectation_of
from sparkdeploy.deploy.group_watch import GroupWatch, Member
from sparkdeploy.deploy.serving import answers, check_truth
from sparkdeploy.deploy.watch import Start, Watch
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.machines import named
from sparkdeploy.plan.container import container_name
from sparkdeploy.plan.steps import plan_as_dict
from sparkdeploy.server.phases import SPARK_COLD_START_S, TWIN_START_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.deploy.replace import Replacement
    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.node.machines import Cluster
    from sparkdeploy.plan.formation import Formation
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that is to be started, and where."""

    plan: Plan
    formation: Formation
    cluster: Cluster
    specs: Mapping[str, ContainerSpec]
    """By node; empty as long as the model is missing."""
    clock_skews_s: Mapping[str, float]

    @property
    def deployment(self) -> str:
        """Return the deployment's name."""
        return self.plan.deployment.name

    def found(self, node: str) -> ContainerFact | None:
        """Return the container that has the deployment's name on a node now."""
        machine = self.cluster.machine(node)
        with named(machine):
            return machine.docker.find_container(container_name(self.deployment))

    def replaces(self) -> bool:
        """Say whether something that runs has to make room."""
        found = (self.found(seat.node) for seat in self.formation.seats)
        return any(fact is not None and fact.is_running for fact in found)


def nothing_to_do(launch: Launch, settings: Settings) -> bool:
    """Say whether every node runs just this, and the head answers."""
    if not launch.specs:
        return False
    for node, spec in launch.specs.items():
        fact = launch.found(node)
        if fact is None or not fact.is_running or fact.fingerprint != spec.fingerprint():
            return False
    head = launch.found(launch.formation.head.node)
    noted = ClusterRecord.below(settings.state_dir).nodes(launch.deployment)
    return head is not None and answers(head) and bool(noted)


def put_in_place(launch: Launch, settings: Settings, extent: Extent) -> Readiness | None:
    """Replace (or start) the deployment on every node and wait for the first answer.

    When it fails, every node's evidence is saved and its old container is back; the error is that
    of the node that failed first. Interrupted, all of it is undone as well.
    """
    nodes = tuple(seat.node for seat in launch.formation.seats)
    record = ClusterRecord.below(settings.state_dir)
    end_start(
        launch.cluster,
        launch.deployment,
        settings,
        reason="another `up --cluster` took its place before it answered",
    )
    noted_before = record.nodes(launch.deployment)
    record.note(launch.deployment, nodes)
    begun: dict[str, Replacement] = {}
    launch_id = uuid4().hex
    try:
        for seat in launch.formation.start_order:
            begun[seat.node] = _begin(launch, seat.node, launch_id, settings)
        if extent is Extent.DETACH:
            return None
        readiness = _wait(launch, begun, settings)
    except BaseException as error:
        left = _undo(launch, begun, error)
        record.note(launch.deployment, tuple(dict.fromkeys((*noted_before, *left))))
        raise
    for replacement in begun.values():
        replacement.commit()
    return readiness


def _begin(launch: Launch, node: str, launch_id: str, settings: Settings) -> Replacement:
    machine, spec = launch.cluster.machine(node), launch.specs[node]
    marked = dataclasses.replace(spec, labels={**spec.labels, labels.LAUNCH: launch_id})
    with named(machine):
        return replace.begin(
            machine.docker, marked, launch.deployment, crashes_dir=crashes_dir(settings)
        )


def _wait(launch: Launch, begun: Mapping[str, Replacement], settings: Settings) -> Readiness:
    members = [
        Member(
            node,
            launch.cluster.machine(node).docker,
            replacement.container_id,
            launch.clock_skews_s.get(node, 0.0),
        )
        for node, replacement in begun.items()
    ]
    with GroupWatch(members) as watch:
        try:
            readiness = _wait_for_head(launch, begun, settings)
            check_truth(expectation_of(launch.plan), readiness.facts)
        except SparkdeployError as error:
            first = watch.find_first()
            if first is None:
                raise
            raise first.error() from error
    return readiness


def _wait_for_head(
    launch: Launch, begun: Mapping[str, Replacement], settings: Settings
) -> Readiness:
    plan, head = launch.plan, launch.cluster.here
    recipe, size = plan.resolved.recipe, len(launch.formation.seats)
    on_cpu = plan.resolved.engine.runs_on == "cpu"
    start = Start(
        deployment=launch.deployment,
        command=f"up {recipe.name} --cluster --name {launch.deployment}",
        deadline_s=recipe.limits.startup_timeout_s,
        pace=f"{plan.images[-1].stage.tag} {recipe.name} on {size} nodes",
        usual_s=TWIN_START_S if on_cpu else SPARK_COLD_START_S,
    )
    return Watch(start, head.docker, settings).wait(begun[head.name].container_id)


def _undo(
    launch: Launch,
    begun: Mapping[str, Replacement],
    error: BaseException,
) -> tuple[str, ...]:
    """Revert every node; return those that cannot be reached, after they have been said."""
    details = {"plan": plan_as_dict(launch.plan), "cause": {"meaning": str(error)}}
    left: list[str] = []
    for node, replacement in begun.items():
        machine = launch.cluster.machine(node)
        try:
            with named(machine):
                folder = replacement.revert(details)
        except NodeError as failure:
            left.append(node)
            console.warn(f"{failure.message}; what was started there may remain")
            continue
        if folder is not None:
            console.info(f"  {node}: evidence: {folder}")
    return tuple(left)
