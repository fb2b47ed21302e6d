"""The deployments on a node, known by their labels alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from sparkdeploy import labels
from sparkdeploy.deploy.served import stopped_because
from sparkdeploy.errors import NodeError
from sparkdeploy.moment import stamp
from sparkdeploy.node.container import (
    KEPT_MARK,
    REPLACED_SUFFIX,
    ContainerFact,
    ListedContainer,
    is_name,
)
from sparkdeploy.node.node import named
from sparkdeploy.node.reports import parse_time
from sparkdeploy.plan.container import container_name
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.words import nearest
from sparkdeploy.server.forensics import Restarts
from sparkdeploy.server.health import restarts_of
from sparkdeploy.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Node

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


Seen = TypeVar("Seen", bound=ListedContainer)


@dataclass(frozen=True, slots=True)
class DeploymentContainers(Generic[Seen]):
    """One name: the container that serves it and, mid-replacement, the one it replaces."""

    name: str
    current: Seen
    """The container that stands for the name now: no deployment is without any."""
    serving: Seen | None
    replaced: Seen | None = None
    kept: tuple[ListedContainer, ...] = ()
    """Earlier ones, stopped, for `rollback`; the newest first."""

    @property
    def is_half_replaced(self) -> bool:
        """Say whether a replacement is under way, or was left so by a CLI that died."""
        return self.replaced is not None

    @property
    def is_of_another_head(self) -> bool:
        """Say whether this machine has only a worker's part of it."""
        fact = self.current
        return fact.rank > 0 and bool(fact.nodes)

    @property
    def containers(self) -> tuple[ListedContainer, ...]:
        current = tuple(fact for fact in (self.serving, self.replaced) if fact is not None)
        return (*current, *self.kept)


Listed: TypeAlias = DeploymentContainers[ListedContainer]
"""A deployment as a list of containers shows it."""
Inspected: TypeAlias = DeploymentContainers[ContainerFact]
"""A deployment whose current containers were inspected; kept ones are as the list has them."""


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


def kept_number(container: str) -> int:
    """Return which of the kept containers one is, by its name; 0 for one that is not kept."""
    _, mark, number = container.rpartition(KEPT_MARK)
    return int(number) if mark and number.isdecimal() else 0


def deployments_in(listing: Iterable[ListedContainer]) -> dict[str, Listed]:
    """Return every deployment by name; containers that are not ours are left out."""
    by_name: dict[str, list[ListedContainer]] = {}
    for item in listing:
        if item.is_own:
            by_name.setdefault(item.deployment, []).append(item)
    found = (_deployment(name, by_name[name], by_name[name]) for name in sorted(by_name))
    return {it.name: it for it in found if it is not None}


def list_deployments(host: DockerHost) -> tuple[Listed, ...]:
    """Return every deployment, by name, from one list of containers."""
    return tuple(deployments_in(host.own_containers()).values())


def inspect_deployment(host: DockerHost, listed: Listed) -> Inspected | None:
    """Return a listed deployment with its current containers inspected; None when it has gone."""
    wanted = [it for it in (listed.serving, listed.replaced) if it is not None]
    return _inspected(host, listed.name, [it.container_id for it in wanted], listed.kept)


def find_deployment(host: DockerHost, name: str) -> Inspected | None:
    """Return a deployment from a list of its containers, inspected; None without any."""
    listed = deployments_in(host.own_containers(name)).get(name)
    return inspect_deployment(host, listed) if listed is not None else None


def look_again(node: Node, name: str) -> Inspected | None:
    """Return a deployment as it is now: its containers are inspected by name, and not listed.

    Those that are kept are listed anew only when another command has changed the others since this
    one has made its list.
    """
    names = (container_name(name), replaced_name(name))
    with named(node):
        before = deployments_in(node.listing).get(name)
        kept = before.kept if before is not None else ()
        found = _inspected(node.docker, name, names, kept)
        if _current_ids(before) != _current_ids(found):
            node.forget_listing()
            now = deployments_in(node.listing).get(name)
            found = inspect_deployment(node.docker, now) if now is not None else None
    return found


def _current_ids(found: Listed | Inspected | None) -> set[str]:
    current = (found.serving, found.replaced) if found is not None else ()
    return {item.container_id for item in current if item is not None}


def _inspected(
    host: DockerHost, name: str, references: Iterable[str], kept: tuple[ListedContainer, ...]
) -> Inspected | None:
    facts = [host.find_container(reference) for reference in references]
    # A container may have been renamed since it was listed, and a name be a stranger's.
    own = [it for it in facts if it is not None and it.is_own and it.deployment == name]
    if not own and kept:
        newest = host.find_container(kept[0].container_id)
        own = [newest] if newest is not None else []
    return _deployment(name, own, kept)


def nodes_with(found: Listed | Inspected | None, noted: tuple[str, ...]) -> tuple[str, ...]:
    """Return who may have something of a deployment: noted, or named on its containers here."""
    named_here = (node for fact in (found.containers if found else ()) for node in fact.nodes)
    return tuple(dict.fromkeys((*noted, *named_here)))


def require_deployment(host: DockerHost, name: str) -> Inspected:
    """Return the deployment of that name, inspected; NodeError names those that exist."""
    known = deployments_in(host.own_containers())
    found = inspect_deployment(host, known[name]) if name in known else None
    if found is None:
        raise no_deployment(name, known)
    return found


def no_deployment(name: str, known: Collection[str]) -> NodeError:
    """Return the error that says which one was meant, or those that exist."""
    listed = f"there is: {', '.join(known)}" if known else ""
    return NodeError(
        f"no deployment named {visible_line(name)}",
        hint=nearest(name, known) or listed or "nothing is deployed; start with `sparkdeploy up`",
    )


def refuse_as_worker(
    found: Listed | Inspected | None, *, there: str = "run the same command"
) -> None:
    """Raise NodeError where this machine has only a part of what another one heads.

    `there` is what to do on that other machine.
    """
    if found is not None and found.is_of_another_head:
        name, head = found.name, found.current.nodes[0]
        raise NodeError(
            f"this machine is only a worker of {name}, which {head} heads",
            hint=f"on {head}, {there}; if {head} is gone for good: "
            f"docker rm -f {found.current.name}",
        )


def status_rows(
    host: DockerHost,
    found: Iterable[Inspected],
    is_healthy: Callable[[Inspected], bool],
) -> tuple[StatusRow, ...]:
    return tuple(_row(host, deployment, is_healthy) for deployment in found)


def remove_containers(host: DockerHost, facts: Sequence[ListedContainer]) -> tuple[str, ...]:
    """Stop and remove containers; return their names."""
    for fact in facts:
        if fact.is_running:
            host.stop(fact.container_id, timeout_s=STOP_TIMEOUT_S)
        host.remove(fact)
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


def _deployment(
    name: str, current: Iterable[Seen], kept: Iterable[ListedContainer]
) -> DeploymentContainers[Seen] | None:
    """Return what some containers are of a deployment; `kept` may have others beside kept ones."""
    numbered = {number: item for item in kept if (number := kept_number(item.name))}
    by_ending = {fact.name.removeprefix(container_name(name)): fact for fact in current}
    serving, replaced = by_ending.get(""), by_ending.get(REPLACED_SUFFIX)
    newest = max(by_ending.values(), key=lambda fact: kept_number(fact.name), default=None)
    stands = serving or replaced or newest
    if stands is None:
        return None
    newest_first = tuple(numbered[number] for number in sorted(numbered, reverse=True))
    return DeploymentContainers(name, stands, serving, replaced, newest_first)


def _row(
    host: DockerHost,
    deployment: Inspected,
    is_healthy: Callable[[Inspected], bool],
) -> StatusRow:
    fact = deployment.current
    restarts = restarts_of(host, fact) if fact.is_running else Restarts()
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


def _url(deployment: Inspected) -> str:
    port = deployment.current.port
    is_here = port is not None and not deployment.is_of_another_head
    return f"http://127.0.0.1:{port}/v1" if is_here else ""


def _stopped_at(deployment: Inspected) -> str:
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


def _state(deployment: Inspected, is_healthy: Callable[[Inspected], bool]) -> str:
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


def _half_done(deployment: Inspected) -> str:
    old, new = deployment.replaced, deployment.serving
    if old is None:
        return ""
    fate = "still runs" if old.is_running else "is stopped"
    if new is None:
        return f"the old container was set aside and {fate}; there is no new one"
    state = "has been started" if new.is_running else f"is {new.state}"
    return f"the new container {state}; the old one {fate}"
