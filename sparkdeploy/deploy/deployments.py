"""The deployments on a node, known by their labels alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.deploy.served import stopped_because
from sparkdeploy.errors import NodeError
from sparkdeploy.moment import stamp
from sparkdeploy.node.container import KEPT_MARK, REPLACED_SUFFIX, is_name
from sparkdeploy.node.reports import parse_time
from sparkdeploy.plan.container import container_name
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.words import nearest
from sparkdeploy.server.forensics import Restarts
from sparkdeploy.server.health import restarts_of
from sparkdeploy.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost

RUNNING = "running"
HEALTHY = "healthy"
BROKEN = "broken"
"""A cluster that lost a node: its head may look healthy and will hang."""
HALF_REPLACED = "half replaced"
HALF_STOPPED = "half stopped"
"""A cluster's head is stopped, and a part of it goes on."""
STOPPED = "stopped"
OTHER_LAUNCH = "of another start than the head"
CAUSE_CHARACTERS = 200
STOP_TIMEOUT_S = 30
WORKER = "worker"
"""A part of what another machine heads."""


@dataclass(frozen=True, slots=True)
class DeploymentContainers:
    """One name: the container that serves it and, mid-replacement, the one it replaces."""

    name: str
    serving: ContainerFact | None
    replaced: ContainerFact | None = None
    kept: tuple[ContainerFact, ...] = ()
    """Earlier ones, stopped, for `rollback`; the newest first."""

    @property
    def is_half_replaced(self) -> bool:
        """Say whether a replacement is under way, or was left so by a CLI that died."""
        return self.replaced is not None

    @property
    def current(self) -> ContainerFact:
        """Return the container that stands for the name now: no deployment is without any."""
        return self.serving or self.replaced or self.kept[0]

    @property
    def is_of_another_head(self) -> bool:
        """Say whether this machine has only a worker's part of it."""
        fact = self.current
        return fact.rank > 0 and bool(fact.nodes)

    @property
    def containers(self) -> tuple[ContainerFact, ...]:
        current = tuple(fact for fact in (self.serving, self.replaced) if fact is not None)
        return (*current, *self.kept)


@dataclass(frozen=True, slots=True)
class MemberRow:
    """What `status` shows of a cluster deployment on one of its other nodes."""

    node: str
    state: str
    """running, exited (N), no container, half replaced, or why the node does not answer."""


@dataclass(frozen=True, slots=True)
class StatusRow:
    """What `status` shows of a deployment."""

    name: str
    recipe: str
    state: str
    """healthy, starting, stopped, exited (N), created, half or being replaced; half stopped or
    broken: a cluster of which parts run and others do not."""
    port: int | None = None
    uptime_s: float | None = None
    memory_bytes: int | None = None
    exit_code: int | None = None
    container: str = ""
    half_done: str = ""
    """What a replacement under way or interrupted has come to."""
    kept: int = 0
    """How many earlier containers `rollback` can go back to."""
    members: tuple[MemberRow, ...] = ()
    user: str = ""
    """Who deployed it; empty where an earlier version did."""
    head: str = ""
    """The node that heads it; empty when that is this one."""
    nodes: tuple[str, ...] = ()
    """The nodes that serve it together; none for one machine's."""
    launch: str = ""
    restarts: int = 0
    """How often the guard started vLLM again in the running container."""
    last_cause: str = ""
    """Why it did so the last time."""
    drafting: str = ""
    """What is wrong with its drafts."""
    url: str = ""
    """Where this machine reaches it; empty for a worker's part, and without a port."""
    model: str = ""
    """What requests call it."""
    exposure: str = ""
    """`loopback`, or `public`: other machines reach its port, with a key."""
    since: str = ""
    """When its container was started, in UTC; empty when it does not run."""
    stopped_at: str = ""
    """When it was stopped, in UTC; empty for what runs, failed, or is only kept for a rollback."""
    stopped_because: str = ""
    """Why it stopped itself: `idle for 30m`; empty where somebody told it to."""
    requests: int | None = None
    """Finished since vLLM was started, by its own count; None where it tells nothing."""
    requests_a_minute: float | None = None
    """Their mean over that time."""
    given_up: str = ""
    """Why the last start failed after which systemd gave it up."""
    wake_failed: str = ""
    """Why the last start failed, where the next connection to its socket starts it again."""


def replaced_name(deployment: str) -> str:
    return container_name(deployment) + REPLACED_SUFFIX


def kept_name(deployment: str, number: int) -> str:
    return f"{container_name(deployment)}{KEPT_MARK}{number}"


def list_deployments(host: DockerHost) -> tuple[DeploymentContainers, ...]:
    """Return every deployment, by name; containers that are not ours are not looked at."""
    by_name: dict[str, list[ContainerFact]] = {}
    for fact in host.own_containers():
        by_name.setdefault(fact.deployment, []).append(fact)
    return tuple(_deployment(name, facts) for name, facts in sorted(by_name.items()))


def find_deployment(host: DockerHost, name: str) -> DeploymentContainers | None:
    return next((found for found in list_deployments(host) if found.name == name), None)


def nodes_with(found: DeploymentContainers | None, noted: tuple[str, ...]) -> tuple[str, ...]:
    """Return who may have something of a deployment: noted, or named on its containers here."""
    named_here = (node for fact in (found.containers if found else ()) for node in fact.nodes)
    return tuple(dict.fromkeys((*noted, *named_here)))


def require_deployment(host: DockerHost, name: str) -> DeploymentContainers:
    """Return the deployment of that name; NodeError names those that exist."""
    deployments = {found.name: found for found in list_deployments(host)}
    if name in deployments:
        return deployments[name]
    raise no_deployment(name, deployments)


def no_deployment(name: str, known: Collection[str]) -> NodeError:
    """Return the error that says which one was meant, or those that exist."""
    listed = f"there is: {', '.join(known)}" if known else ""
    return NodeError(
        f"no deployment named {visible_line(name)}",
        hint=nearest(name, known) or listed or "nothing is deployed; start with `sparkdeploy up`",
    )


def refuse_as_worker(host: DockerHost, name: str, *, there: str = "run the same command") -> None:
    """Raise NodeError where this machine has only a part of what another one heads.

    `there` is what to do on that other machine.
    """
    found = find_deployment(host, name)
    if found is not None and found.is_of_another_head:
        head = found.current.nodes[0]
        raise NodeError(
            f"this machine is only a worker of {name}, which {head} heads",
            hint=f"on {head}, {there}; if {head} is gone for good: "
            f"docker rm -f {found.current.name}",
        )


def status_rows(
    host: DockerHost,
    found: Iterable[DeploymentContainers],
    is_healthy: Callable[[DeploymentContainers], bool],
) -> tuple[StatusRow, ...]:
    return tuple(_row(host, deployment, is_healthy) for deployment in found)


def remove_containers(host: DockerHost, facts: Sequence[ContainerFact]) -> tuple[str, ...]:
    """Stop and remove containers; return their names."""
    for fact in facts:
        if fact.is_running:
            host.stop(fact.container_id, timeout_s=STOP_TIMEOUT_S)
        host.remove(fact.container_id)
    return tuple(fact.name for fact in facts)


def uptime_s(fact: ContainerFact) -> float | None:
    if not fact.is_running:
        return None
    started = parse_time(fact.started_at)
    # A clock that was set back is no reason to show a start in the future.
    return max((datetime.now(UTC) - started).total_seconds(), 0.0) if started else None


def may_still_start(fact: ContainerFact) -> bool:
    running_s, timeout_s = uptime_s(fact), fact.startup_timeout_s
    return running_s is not None and timeout_s is not None and running_s < timeout_s


def _deployment(name: str, facts: list[ContainerFact]) -> DeploymentContainers:
    serving = replaced = None
    kept: dict[int, ContainerFact] = {}
    for fact in facts:
        ending = fact.name.removeprefix(container_name(name))
        if ending.startswith(KEPT_MARK):
            kept[int(ending.removeprefix(KEPT_MARK))] = fact
        elif ending == REPLACED_SUFFIX:
            replaced = fact
        else:
            serving = fact
    newest_first = tuple(kept[number] for number in sorted(kept, reverse=True))
    return DeploymentContainers(name, serving, replaced, newest_first)


def _row(
    host: DockerHost,
    deployment: DeploymentContainers,
    is_healthy: Callable[[DeploymentContainers], bool],
) -> StatusRow:
    fact = deployment.current
    restarts = restarts_of(host, fact.container_id) if fact.is_running else Restarts()
    return StatusRow(
        name=deployment.name,
        recipe=_recipe(fact),
        state=_state(deployment, is_healthy),
        port=fact.port,
        uptime_s=uptime_s(fact),
        memory_bytes=host.memory_bytes(fact.container_id) if fact.is_running else None,
        exit_code=None if fact.is_running else fact.exit_code,
        container=fact.name,
        half_done=_half_done(deployment),
        kept=len(deployment.kept),
        user=fact.user,
        head=fact.nodes[0] if deployment.is_of_another_head else "",
        nodes=fact.nodes,
        launch=fact.launch,
        restarts=restarts.count,
        last_cause=_last_cause(restarts),
        url=_url(deployment),
        model=visible_line(fact.labels.get(labels.SERVED_NAME, ""))[:CAUSE_CHARACTERS],
        exposure=_exposure(fact),
        since=stamp(parse_time(fact.started_at)) if fact.is_running else "",
        stopped_at=_stopped_at(deployment),
        stopped_because=stopped_because(fact) if deployment.serving is not None else "",
    )


def _url(deployment: DeploymentContainers) -> str:
    port = deployment.current.port
    is_here = port is not None and not deployment.is_of_another_head
    return f"http://127.0.0.1:{port}/v1" if is_here else ""


def _stopped_at(deployment: DeploymentContainers) -> str:
    fact = deployment.serving
    return stamp(parse_time(fact.finished_at)) if fact is not None and fact.is_stopped else ""


def _exposure(fact: ContainerFact) -> str:
    """Anybody may have written the label."""
    said = fact.labels.get(labels.EXPOSURE, "")
    return said if said in {item.value for item in Exposure} else ""


def _last_cause(restarts: Restarts) -> str:
    """A line of the log may be of any length, and hold what a terminal obeys."""
    said = visible_line(restarts.cause.describe()) if restarts.cause is not None else ""
    return said if len(said) <= CAUSE_CHARACTERS else said[: CAUSE_CHARACTERS - 3] + "..."


def _recipe(fact: ContainerFact) -> str:
    """A label may hold a megabyte, or what a terminal obeys."""
    said = fact.labels.get(labels.RECIPE, "")
    return said if is_name(said) else ""


def _state(
    deployment: DeploymentContainers, is_healthy: Callable[[DeploymentContainers], bool]
) -> str:
    fact = deployment.current
    if deployment.is_half_replaced:
        return HALF_REPLACED
    if deployment.serving is None or fact.is_stopped:
        return STOPPED
    if fact.is_running and deployment.is_of_another_head:
        return WORKER
    if fact.is_running:
        return HEALTHY if is_healthy(deployment) else "starting"
    return f"exited ({fact.exit_code})" if fact.state == "exited" else fact.state


def _half_done(deployment: DeploymentContainers) -> str:
    old, new = deployment.replaced, deployment.serving
    if old is None:
        return ""
    fate = "still runs" if old.is_running else "is stopped"
    if new is None:
        return f"the old container was set aside and {fate}; there is no new one"
    state = "has been started" if new.is_running else f"is {new.state}"
    return f"the new container {state}; the old one {fate}"
