"""`up --cluster`: one model over several nodes, the same on each, started and watched as one."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.checks.fabric import gpu_checks, memory_checks, owner_checks
from sparkdeploy.commands.checkpoint_fetch import bring_models
from sparkdeploy.commands.cluster_launch import Launch, nothing_to_do, put_in_place
from sparkdeploy.commands.cluster_look import (
    Survey,
    configured,
    connected,
    name_here,
    require_sound,
)
from sparkdeploy.commands.cluster_look import survey as look_at
from sparkdeploy.commands.cluster_recovery import recover_all
from sparkdeploy.commands.drafting import draft_plan
from sparkdeploy.commands.up import Extent, Handover, Outcome
from sparkdeploy.console import console, format_bytes
from sparkdeploy.deploy.changing import changing
from sparkdeploy.deploy.cluster_images import ImageTravel, same_images
from sparkdeploy.deploy.cluster_weights import model_there, same_weights, there, trees_of
from sparkdeploy.deploy.images import build_images
from sparkdeploy.deploy.memory import PageCache
from sparkdeploy.deploy.prepare import prepare_checkpoint, prepare_folders
from sparkdeploy.errors import CheckpointError, SparkdeployError, UsageError
from sparkdeploy.node.machines import named
from sparkdeploy.plan.cluster_report import cluster_lines
from sparkdeploy.plan.container import Weights, container_name, container_user
from sparkdeploy.plan.formation import Formation, for_cluster, form_up
from sparkdeploy.plan.node_launch import Place, node_spec
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.refusal import refuse_to_prepare, refuse_to_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sparkdeploy.checks.fabric import Check
    from sparkdeploy.commands.drafting import Request
    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.node.machines import Cluster, ClusterMachine
    from sparkdeploy.plan.formation import Seat
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Travel:
    """What went to one worker before the launch."""

    image: ImageTravel
    weights_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return all of it."""
        return self.image.engine_bytes + self.image.context_bytes + self.weights_bytes


def up(
    resolved: Resolved,
    request: Request,
    settings: Settings,
    *,
    extent: Extent,
    consent: Callable[[str], bool],
    handover: Handover | None = None,
) -> Outcome:
    """Make the nodes serve what the recipe says, this machine being the head.

    The node's lock is held until the model has answered. `handover` is for one machine alone:
    of a cluster no earlier containers are kept, and no page cache is dropped.

    Raises what the solo `up` raises, each message with the node's name. After a failed launch
    the deployment that was there before is there again, on every node that answers.
    """
    if handover is not None and handover.page_cache is PageCache.DROP:
        raise UsageError("--drop-page-cache is for one machine; run it on each node by itself")
    resolved = for_cluster(resolved)
    config = configured(settings)
    formation = form_up(resolved, config, name_here(config))
    for name in formation.left_alone:
        console.info(f"{name} is left alone: {len(formation.seats)} nodes are enough")
    needed = frozenset(seat.node for seat in formation.seats)
    with (
        connected(settings, needed) as cluster,
        changing(settings, f"up {request.recipe} --cluster --name {request.deployment.name}"),
    ):
        cluster.require_all()
        recover_all(cluster, request.deployment.name, settings)
        found = look_at(cluster)
        require_sound((*found.checks, *_gpu_checks(resolved, found)))
        formation = form_up(resolved, config, cluster.here.name, found.gid_indexes(config))
        run = _Run(resolved, request, settings, cluster, found, formation)
        return run.up(extent, consent)


@dataclass(frozen=True, slots=True)
class Draft:
    """What an `up --cluster` would do, and what was found of the nodes."""

    plan: Plan
    formation: Formation
    specs: Mapping[str, ContainerSpec]
    checks: tuple[Check, ...]


def draft(resolved: Resolved, request: Request, settings: Settings) -> Draft:
    """Look at every node that is needed and decide; change nothing."""
    resolved = for_cluster(resolved)
    config = configured(settings)
    formation = form_up(resolved, config, name_here(config))
    needed = frozenset(seat.node for seat in formation.seats)
    with connected(settings, needed) as cluster:
        found = look_at(cluster)
        formation = form_up(resolved, config, cluster.here.name, found.gid_indexes(config))
        run = _Run(resolved, request, settings, cluster, found, formation)
        plan = run.plan()
        specs = run.launch(plan).specs if not cluster.unreachable else {}
    return Draft(plan, formation, specs, found.checks)


@dataclass(frozen=True, slots=True)
class _Run:
    """One `up --cluster`, with everything that was seen."""

    resolved: Resolved
    request: Request
    settings: Settings
    cluster: Cluster
    found: Survey
    formation: Formation

    @property
    def head(self) -> ClusterMachine:
        return self.cluster.here

    @property
    def workers(self) -> tuple[ClusterMachine, ...]:
        return tuple(self.cluster.machine(seat.node) for seat in self.formation.seats[1:])

    def up(self, extent: Extent, consent: Callable[[str], bool]) -> Outcome:
        plan = self.plan()
        refuse_to_prepare(plan)
        if bring_models(plan, self.settings, consent):
            plan = self.plan()
        if extent is not Extent.PREPARE and nothing_to_do(self.launch(plan), self.settings):
            console.info(f"nothing to do: {plan.deployment.name} runs on every node")
            return Outcome(plan, _base_url(plan), changed=False)
        if extent is not Extent.PREPARE:
            require_sound((*self._owner_checks(), *self._memory_checks(plan)))
            refuse_to_start(plan)
        for line in cluster_lines(plan, self.formation):
            console.info(line)
        travels = self._prepare(plan)
        changed = plan.checkpoint.action.is_work or any(step.action.is_work for step in plan.images)
        if extent is Extent.PREPARE:
            sent = any(item.total_bytes for item in travels)
            return Outcome(plan, _base_url(plan), changed=changed or sent)
        return self._start(self.plan(), extent, consent)

    def plan(self) -> Plan:
        return draft_plan(self.resolved, self.settings, self.head.docker, self.request.deployment)

    def _owner_checks(self) -> Iterator[Check]:
        found = {}
        for seat in self.formation.seats:
            machine = self.cluster.machine(seat.node)
            with named(machine):
                found[seat.node] = machine.docker.own_containers()
        return owner_checks(self.head.name, found)

    def _memory_checks(self, plan: Plan) -> tuple[Check, ...]:
        """Hold what each node has, and what its old container gives back, against the need."""
        running = {seat.node: self._running(plan, seat) for seat in self.formation.seats}
        freed_bytes = {
            node: fact.promised_bytes for node, fact in running.items() if fact is not None
        }
        return tuple(memory_checks(plan.needs.memory_bytes, self.found.seen, freed_bytes))

    def _running(self, plan: Plan, seat: Seat) -> ContainerFact | None:
        machine = self.cluster.machine(seat.node)
        with named(machine):
            fact = machine.docker.find_container(container_name(plan.deployment.name))
        return fact if fact is not None and fact.is_running else None

    def _prepare(self, plan: Plan) -> tuple[Travel, ...]:
        build_images(plan, self.head.docker, self.settings)
        prepare_checkpoint(plan, self.settings)
        travels = same_everywhere(plan, self.cluster, self.found, self.workers, self.settings)
        for worker, travel in zip(self.workers, travels, strict=True):
            console.info(_travel_line(worker.name, travel))
        return travels

    def _start(self, plan: Plan, extent: Extent, consent: Callable[[str], bool]) -> Outcome:
        # Another head may have come while images and weights travelled.
        require_sound(tuple(self._owner_checks()))
        launch = self.launch(plan)
        if launch.replaces() and not consent(
            f"deployment {plan.deployment.name} is running and will be replaced. Go on?"
        ):
            raise SparkdeployError(
                f"deployment {plan.deployment.name} was not replaced",
                hint="say yes, or pass --yes",
            )
        prepare_folders(plan, launch.specs[self.head.name])
        for seat in self.formation.seats[1:]:
            self._prepare_cache(launch.specs[seat.node], self.cluster.machine(seat.node))
        readiness = put_in_place(launch, self.settings, extent)
        return Outcome(plan, _base_url(plan), changed=True, readiness=readiness)

    def launch(self, plan: Plan) -> Launch:
        specs = {
            seat.node: self._spec(plan, seat)
            for seat in self.formation.seats
            if isinstance(plan.observed.model, ModelFact)
        }
        skews = {name: seen.clock_skew_s for name, seen in self.found.seen.items()}
        return Launch(plan, self.formation, self.cluster, specs, skews)

    def _spec(self, plan: Plan, seat: Seat) -> ContainerSpec:
        spec = node_spec(
            self.resolved,
            self.formation,
            seat,
            image=plan.images[-1].stage.tag,
            deployment=plan.deployment,
            place=self._place(plan, seat),
        )
        memory = plan.needs.memory_bytes
        more = {labels.MEMORY: str(memory)} if memory is not None else {}
        return replace(spec, labels={**spec.labels, **more, labels.FINGERPRINT: spec.fingerprint()})

    def _place(self, plan: Plan, seat: Seat) -> Place:
        model, drafter = plan.observed.model, plan.observed.drafter
        if not isinstance(model, ModelFact):
            raise CheckpointError("the model is not on this machine")
        drafter = drafter if isinstance(drafter, ModelFact) else None
        if seat.is_head:
            return Place(Weights(model, drafter), plan.folders)
        here = self.found.seen[self.head.name].facts
        worker = self.found.seen[seat.node].facts
        moved = model_there(model, here, worker)
        uid, gid = container_user(moved)
        cache = there(plan.folders.cache, here, worker)
        template = plan.folders.chat_template
        folders = replace(
            plan.folders,
            cache=cache.with_name(f"{uid}-{gid}"),
            chat_template=there(template, here, worker) if template else None,
        )
        return Place(
            Weights(moved, model_there(drafter, here, worker) if drafter else None), folders
        )

    def _prepare_cache(self, spec: ContainerSpec, worker: ClusterMachine) -> None:
        cache = next(mount.source for mount in spec.mounts if mount.mode == "rw")
        folder = shlex.quote(cache)
        script = f"mkdir -p {folder} && if [ $(id -u) = 0 ]; then chown {spec.user} {folder}; fi"
        done = worker.run(script)
        if done.exit_code != 0:
            raise SparkdeployError(
                f"{worker.name}: {cache} cannot be made", detail=done.stderr.strip()
            )


def same_everywhere(
    plan: Plan,
    cluster: Cluster,
    found: Survey,
    workers: tuple[ClusterMachine, ...],
    settings: Settings,
) -> tuple[Travel, ...]:
    """Bring every worker the images and the weights of the plan; only what differs travels."""
    head = cluster.here
    images = same_images(plan, head, workers, settings)
    here = found.seen[head.name].facts
    travels = []
    for worker, image in zip(workers, images, strict=True):
        with named(worker):
            sent_bytes = sum(
                same_weights(tree, head, worker, settings)
                for tree in trees_of(plan, here, found.seen[worker.name].facts)
            )
        travels.append(Travel(image, sent_bytes))
    return tuple(travels)


def _base_url(plan: Plan) -> str:
    return f"http://127.0.0.1:{plan.resolved.recipe.serve.port}"


def _gpu_checks(resolved: Resolved, found: Survey) -> Iterator[Check]:
    if resolved.engine.runs_on == "cuda":
        yield from gpu_checks(found.engines, found.seen)


def _travel_line(node: str, travel: Travel) -> str:
    image = travel.image
    return (
        f"{node}: {format_bytes(travel.total_bytes)} sent (engine "
        f"{format_bytes(image.engine_bytes)}, plugin context {format_bytes(image.context_bytes)}, "
        f"weights {format_bytes(travel.weights_bytes)})"
    )
