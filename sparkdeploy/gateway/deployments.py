"""The deployments of a stack: what they are now, and how they are started and stopped.

All of it blocks, and runs in threads beside the server.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sparkdeploy.deploy import lifecycle
from sparkdeploy.deploy.deployments import (
    Inspected,
    deployments_in,
    find_deployment,
    inspect_deployment,
)
from sparkdeploy.deploy.lifecycle import stop
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.request import resolve
from sparkdeploy.deploy.serving import (
    ServedDeployment,
    answers,
    metrics_of,
    read_key,
    served_by,
    stopped_because,
)
from sparkdeploy.deploy.up import Confirm, Extent, Outcome, UpOptions, up
from sparkdeploy.errors import CheckpointError, NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.gateway.plans import PlannedModel, StackPlan, naming
from sparkdeploy.gateway.scheduler import Sighting
from sparkdeploy.gateway.stack import ModelEntry
from sparkdeploy.monitor.snapshot import MetricsHistory, TimedMetrics, server_figures
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.facts import parse_meminfo
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import Node
from sparkdeploy.node.ports import Listener, listener_of, listening_sockets
from sparkdeploy.recipe.answers import Answers
from sparkdeploy.server.health import death
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_bytes

MEMORY_RETURNS_S = 30.0
RETRY_S = 3.0
FORGIVEN_MISSES = 3
"""A server that reads a long prompt may say for a moment nothing of its health."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a model's server answers."""

    base_url: str
    served_name: str
    key: str | None = None
    sockets: frozenset[str] | None = None
    """That its server listens with; None where nobody looks."""

    @property
    def port(self) -> int:
        return int(self.base_url.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class DeploymentLook:
    seen: Sighting
    upstream: Upstream | None = None
    cause: str = ""
    """Why it is not there, in words; empty where it was stopped."""
    tokens_per_s: float | None = None
    answers: Answers | None = None
    """Which routes it has; None without a container."""


@dataclass(frozen=True, slots=True)
class NodeMemory:
    name: str
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class StackLook:
    """What one look at all of them has shown."""

    models: Mapping[str, DeploymentLook]
    nodes: tuple[NodeMemory, ...] = ()


class StackDeployments:
    def __init__(self, plan: StackPlan, settings: Settings) -> None:
        self._plan = plan
        self._settings = settings
        self._stopped_s = -math.inf
        self._node: Node | None = None
        self._misses: dict[str, int] = {}
        self._deaths: dict[tuple[str, str], str] = {}
        self._histories: dict[str, MetricsHistory] = {}

    def look(self, *, with_figures: bool = False) -> StackLook:
        """Look at every model of the stack, in one thread at a time; NodeError without Docker."""
        if self._node is None:
            here = self._settings
            self._node = Node(here.node_name, docker_host=here.docker_host)
        node = self._node
        try:
            return self._look_on(node, with_figures=with_figures)
        except NodeError:
            # A connection that broke off stays so.
            self._node = None
            node.__exit__()
            raise

    def _look_on(self, node: Node, *, with_figures: bool) -> StackLook:
        node.forget_listing()
        listed, host = deployments_in(node.listing), node.docker
        models: dict[str, DeploymentLook] = {}
        for model in self._plan.stack.models:
            found = listed.get(model.name)
            inspected = inspect_deployment(host, found) if found is not None else None
            models[model.name] = self._look_at(host, inspected, with_figures=with_figures)
        memory = parse_meminfo(node.read_file("/proc/meminfo"))
        total, available = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
        return StackLook(models, (NodeMemory(node.name, total, available),))

    def start(self, model: ModelEntry) -> Upstream:
        """Start a deployment as `up` does with what is prepared; return where it answers."""
        member = self._plan[model.name]
        while True:
            try:
                start_model(member, self._settings)
                break
            except NodeError:
                # What was just stopped gives its memory back within some seconds.
                if time.monotonic() - self._stopped_s > MEMORY_RETURNS_S:
                    raise
                time.sleep(RETRY_S)
        with connect(self._settings) as host:
            look = self._look_at(host, find_deployment(host, model.name))
        if look.upstream is None:
            raise UnhealthyError(f"{model.name} has started and does not answer: {look.cause}")
        return look.upstream

    def stop(self, model: ModelEntry) -> None:
        lifecycle.stop(model.name)
        self._stopped_s = time.monotonic()

    def _look_at(
        self, host: DockerHost, found: Inspected | None, *, with_figures: bool = False
    ) -> DeploymentLook:
        if found is None:
            return DeploymentLook(Sighting.STOPPED)
        fact = found.current
        try:
            served = served_by(fact, self._settings)
        except NodeError as error:
            return DeploymentLook(Sighting.STOPPED, cause=error.message)
        look = DeploymentLook(Sighting.STOPPED, cause=stopped_because(fact))
        own = self._plan[found.name].resolved.recipe.name
        is_another = served.recipe not in {"", own} and found.name not in served.models
        if fact.is_running and is_another:
            # No request goes there; a start of ours says what is in the way.
            look = DeploymentLook(Sighting.STARTING, cause=f"{served.recipe} runs under its name")
        elif found.is_half_replaced and any(it.is_running for it in found.containers):
            look = DeploymentLook(Sighting.STARTING, cause="it is being replaced")
        elif fact.is_running:
            look = self._look_at_server(fact, served)
        elif found.serving is not None and not fact.is_stopped and fact.state != "created":
            look = DeploymentLook(Sighting.DEAD, cause=self._death_of(host, fact))
        is_read = with_figures and look.upstream is not None
        tokens_per_s = self._tokens_per_s(fact) if is_read else None
        return replace(look, tokens_per_s=tokens_per_s, answers=served.answers)

    def _look_at_server(self, fact: ContainerFact, served: ServedDeployment) -> DeploymentLook:
        starting = DeploymentLook(Sighting.STARTING, cause="its server does not answer yet")
        start = f"{fact.container_id} {fact.started_at}"
        sockets = listening_sockets(served.port)
        if listener_of(fact, served.port) in {Listener.NOBODY, Listener.ANOTHER}:
            return starting
        misses = 0 if answers(fact) else self._misses.get(start, FORGIVEN_MISSES) + 1
        self._misses = {it: n for it, n in self._misses.items() if it != start}
        if misses > FORGIVEN_MISSES:
            return starting
        self._misses[start] = misses
        try:
            key = read_key(fact, self._settings)
        except NodeError as error:
            return replace(starting, cause=error.message)
        upstream = Upstream(f"http://127.0.0.1:{served.port}", served.model, key, sockets)
        return DeploymentLook(Sighting.HEALTHY, upstream)

    def _tokens_per_s(self, fact: ContainerFact) -> float | None:
        metrics = TimedMetrics(time.monotonic(), metrics_of(fact, self._settings))
        history = self._histories.get(fact.container_id, MetricsHistory()).after(metrics)
        self._histories = {**self._histories, fact.container_id: history}
        return server_figures(history).tokens_per_s

    def _death_of(self, host: DockerHost, fact: ContainerFact) -> str:
        """Return why a container ended; its log is read once for each end."""
        end = (fact.container_id, fact.finished_at)
        if end not in self._deaths:
            self._deaths[end] = death(host, fact.container_id, fact).message
        return self._deaths[end]


@dataclass(frozen=True, slots=True)
class Ready:
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
    """Prepare every model by the code of `up --prepare`, then start what is always kept."""
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
    """Start one model as `up` does with what is prepared; CheckpointError for downloads."""
    return _up(member, settings, lambda _question: False, UpOptions())


def _up(member: PlannedModel, settings: Settings, confirm: Confirm, how: UpOptions) -> Outcome:
    with naming(member.model.name):
        resolved = resolve(member.request, settings)
        return up(resolved, member.request, settings, confirm=confirm, options=how)


def _confirmed_downloads(plan: StackPlan, confirm: Confirm) -> Confirm:
    """Ask once for all downloads, or let each model ask where a size is unknown."""
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
    with connect(settings) as host:
        found = deployments_in(host.own_containers()).values()
    running = {it.name for it in found if it.serving is not None and it.serving.is_running}
    return running & {it.model.name for it in plan.members}
