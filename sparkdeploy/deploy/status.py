"""What `status` shows of a deployment: one row, made by one function."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import uptime_s
from sparkdeploy.deploy.serving import metrics_of, stopped_because
from sparkdeploy.node.lock import attendant_of
from sparkdeploy.node.reports import parse_time
from sparkdeploy.server.crash import Restarts
from sparkdeploy.server.health import restarts_of
from sparkdeploy.server.metrics import Metrics, low_acceptance_warning
from sparkdeploy.terminal.safe_text import visible_line
from sparkdeploy.units import iso_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparkdeploy.deploy.deployments import Inspected
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings

RUNNING = "running"
NO_CONTAINER = "no container"
HEALTHY = "healthy"
BROKEN = "broken"
"""A cluster that lost a node: its head may look healthy and will hang."""
HALF_REPLACED = "half replaced"
HALF_STOPPED = "half stopped"
"""A cluster's head is stopped, and a rank of it goes on."""
STOPPED = "stopped"
OTHER_LAUNCH = "of another start than the head"
CAUSE_CHARACTERS = 200
WORKER = "worker"
"""A rank of what another machine heads."""
BEING_REPLACED = "being replaced"


@dataclass(frozen=True, slots=True)
class MemberRow:
    """What `status` shows of a cluster deployment on one of its other nodes."""

    node: str
    state: str
    """running, exited (N), no container, half replaced, or why the node does not answer."""


@dataclass(frozen=True, slots=True)
class StatusRow:
    name: str
    recipe: str
    state: str
    """healthy, starting, stopped, exited (N), created, half or being replaced; half stopped or
    broken: a cluster of which ranks run and others do not."""
    port: int | None = None
    uptime_s: float | None = None
    memory_bytes: int | None = None
    exit_code: int | None = None
    container: str = ""
    half_done: str = ""
    kept: int = 0
    """How many earlier containers `rollback` can go back to."""
    members: tuple[MemberRow, ...] = ()
    user: str = ""
    head: str = ""
    """The node that heads it; empty when that is this one."""
    nodes: tuple[str, ...] = ()
    launch: str = ""
    restarts: int = 0
    last_cause: str = ""
    drafting: str = ""
    url: str = ""
    """Where this machine reaches it; empty for a worker's, and without a port."""
    model: str = ""
    exposure: str = ""
    """`loopback`, or `public`: other machines reach its port, with a key."""
    since: str = ""
    """When its container was started, in UTC; empty when it does not run."""
    stopped_at: str = ""
    """When it was stopped, in UTC; empty for what runs, failed, or is only kept for a rollback."""
    stopped_because: str = ""
    """Why it stopped itself: `idle for 30m`; empty where a command stopped it."""
    requests: int | None = None
    """Finished since vLLM was started, by its own count; None where it tells nothing."""
    requests_a_minute: float | None = None
    given_up: str = ""
    """Why the last start failed after which systemd gave it up."""
    wake_failed: str = ""
    """Why the last start failed, where the next connection to its socket starts it again."""


def status_row(
    host: DockerHost,
    deployment: Inspected,
    settings: Settings,
    is_answering: Callable[[ContainerFact], bool],
    members: tuple[MemberRow, ...] = (),
) -> StatusRow:
    """Return the row of a deployment; `members` is what the other nodes say of it."""
    fact = deployment.current
    own_state = _own_state(deployment, is_answering)
    metrics = metrics_of(fact, settings) if own_state == HEALTHY else Metrics()
    state, half_done = _among_nodes(own_state, deployment, members)
    if half_done:
        state, half_done = _attended(state, half_done, deployment, settings)
    restarts = restarts_of(host, fact) if fact.is_running else Restarts()
    return StatusRow(
        name=deployment.name,
        recipe=fact.labels.get(labels.RECIPE, ""),
        state=state,
        port=fact.port,
        uptime_s=uptime_s(fact),
        memory_bytes=host.memory_bytes(fact.container_id) if fact.is_running else None,
        exit_code=None if fact.is_running else fact.exit_code,
        container=fact.name,
        half_done=half_done,
        kept=len(deployment.kept),
        members=members,
        user=fact.user,
        head=fact.nodes[0] if deployment.is_of_another_head else "",
        nodes=fact.nodes,
        launch=fact.launch,
        restarts=restarts.count,
        last_cause=_last_cause(restarts),
        drafting=low_acceptance_warning(metrics.drafted),
        url=_url(deployment),
        model=fact.labels.get(labels.SERVED_NAME, ""),
        exposure=fact.labels.get(labels.EXPOSURE, ""),
        since=iso_utc(parse_time(fact.started_at)) if fact.is_running else "",
        stopped_at=_stopped_at(deployment),
        stopped_because=stopped_because(fact) if deployment.serving is not None else "",
        requests=None if metrics.finished is None else int(metrics.finished),
        requests_a_minute=metrics.finished_a_minute(time.time()),
    )


def _among_nodes(
    state: str, deployment: Inspected, members: Sequence[MemberRow]
) -> tuple[str, str]:
    """Return the state and what is half done: a head may look healthy and hang without a worker."""
    half_done, nodes = _half_done(deployment), deployment.current.nodes
    if half_done:
        return state, half_done
    if any(member.state in {HALF_REPLACED, OTHER_LAUNCH} for member in members):
        return HALF_REPLACED, "the nodes have ranks of different starts"
    # What an earlier one has left on other nodes is no part of what serves now.
    asked = (*nodes, "cluster") if nodes else ()
    is_stopped = state == STOPPED
    wanted = STOPPED if is_stopped else RUNNING
    if all(member.state == wanted for member in members if member.node in asked):
        return state, ""
    return (HALF_STOPPED if is_stopped else BROKEN), ""


def _attended(
    state: str, half_done: str, deployment: Inspected, settings: Settings
) -> tuple[str, str]:
    """Tell a replacement that somebody waits for from one that was left half done."""
    name = deployment.name
    attendant = attendant_of(settings.lock_dir, settings.node_name, name)
    if attendant is not None:
        return BEING_REPLACED, f"{half_done}; {attendant.describe()} waits for it"
    where = f" on {deployment.current.nodes[0]}" if deployment.is_of_another_head else ""
    return state, f"{half_done}; `sparkdeploy rollback {name}`{where} finishes or reverts it"


def _url(deployment: Inspected) -> str:
    port = deployment.current.port
    is_here = port is not None and not deployment.is_of_another_head
    return f"http://127.0.0.1:{port}/v1" if is_here else ""


def _stopped_at(deployment: Inspected) -> str:
    fact = deployment.serving
    return iso_utc(parse_time(fact.finished_at)) if fact is not None and fact.is_stopped else ""


def _last_cause(restarts: Restarts) -> str:
    """A line of the log may be of any length, and hold what a terminal obeys."""
    said = visible_line(restarts.cause.describe()) if restarts.cause is not None else ""
    return said if len(said) <= CAUSE_CHARACTERS else said[: CAUSE_CHARACTERS - 3] + "..."


def _own_state(deployment: Inspected, is_answering: Callable[[ContainerFact], bool]) -> str:
    fact = deployment.current
    if deployment.is_half_replaced:
        return HALF_REPLACED
    if deployment.serving is None or fact.is_stopped:
        return STOPPED
    if fact.is_running and deployment.is_of_another_head:
        return WORKER
    if fact.is_running:
        return HEALTHY if is_answering(fact) else "starting"
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
