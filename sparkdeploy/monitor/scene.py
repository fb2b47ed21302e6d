"""What the watch shows at one moment, from what its readers saw. Nothing here looks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.deploy.status import RUNNING
from sparkdeploy.monitor.figures import MetricsHistory, ServerFigures, server_figures
from sparkdeploy.node.reports import parse_time
from sparkdeploy.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from sparkdeploy.deploy.deployments import Inspected
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.facts import GpuLoad

GIB = 2**30
ERROR_CHARACTERS = 300
NO_CONTAINER = "no container"


class Standing(Enum):
    """How a deployment is."""

    SERVING = "serving"
    STARTING = "starting"
    SILENT = "does not answer"
    BROKEN = "broken"
    """A cluster's server that lost one of its nodes."""
    EXITED = "exited"
    STOPPED = "stopped"
    REMOVED = "removed"
    WORKER = "worker"

    @property
    def is_gone(self) -> bool:
        return self in {
            Standing.SILENT,
            Standing.BROKEN,
            Standing.EXITED,
            Standing.STOPPED,
            Standing.REMOVED,
        }


@dataclass(frozen=True, slots=True)
class ServerLook:
    """What the reader of one server knows."""

    history: MetricsHistory = field(default_factory=MetricsHistory)
    is_answering: bool = False
    has_answered: bool = False
    silent_since: datetime | None = None
    problem: str = ""
    """Why it does not answer, in the words of who knows."""


@dataclass(frozen=True, slots=True)
class ContainerLook:
    """What a Docker Engine says of one deployment."""

    found: Inspected
    restarts: int = 0
    last_error: str = ""
    removed_at: datetime | None = None
    floor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeLook:
    """What a node told last; `gone_since` is set while it tells nothing."""

    name: str
    available_bytes: int | None = None
    total_bytes: int | None = None
    gpu: GpuLoad | None = None
    gone_since: datetime | None = None
    problem: str = ""
    parts: Mapping[str, str] | None = None
    """For each deployment the state of this node's container; None: not known, or this machine."""


@dataclass(frozen=True, slots=True)
class WatchedDeployment:
    name: str
    recipe: str
    model: str
    url: str
    life: Standing
    told: str
    """The state in words, such as `exited (86)`."""
    since: datetime | None
    """Since when it has been gone."""
    up_since: datetime | None
    restarts: int
    last_error: str
    figures: ServerFigures
    note: str = ""


@dataclass(frozen=True, slots=True)
class WatchedNode:
    name: str
    available_bytes: int | None
    total_bytes: int | None
    floor_bytes: int | None
    """Below it the guard ends what serves there."""
    gpu: GpuLoad | None
    gone_since: datetime | None
    problem: str


@dataclass(frozen=True, slots=True)
class Scene:
    at: datetime
    deployments: tuple[WatchedDeployment, ...] = ()
    nodes: tuple[WatchedNode, ...] = ()
    problem: str = ""
    """Why the Docker Engine of this machine says nothing."""


def scene_of(
    at: datetime,
    containers: Iterable[ContainerLook],
    servers: Mapping[str, ServerLook],
    nodes: Iterable[NodeLook],
    problem: str = "",
) -> Scene:
    """Put a scene together; `servers` are by the name of their deployment."""
    known, looks = tuple(nodes), tuple(containers)
    return Scene(
        at,
        tuple(_deployment(it, servers.get(it.found.name, ServerLook()), known) for it in looks),
        tuple(_node(it, looks, is_here=number == 0) for number, it in enumerate(known)),
        visible_line(problem),
    )


def floor_bytes(fact: ContainerFact) -> int | None:
    """Return the memory that the recipe keeps free, from its label; None without one."""
    text = fact.labels.get(labels.RECIPE_VALUES)
    return int(json.loads(text)["limits"]["memory_floor_gib"] * GIB) if text else None


def _deployment(
    look: ContainerLook, server: ServerLook, nodes: tuple[NodeLook, ...]
) -> WatchedDeployment:
    fact = look.found.current
    lost = () if look.removed_at else tuple(_lost_parts(fact, nodes))
    life = _life(look, server, is_whole=not lost)
    runs = life in {
        Standing.SERVING,
        Standing.STARTING,
        Standing.SILENT,
        Standing.BROKEN,
        Standing.WORKER,
    }
    error = look.last_error or (server.problem if life is Standing.SILENT else "")
    return WatchedDeployment(
        name=look.found.name,
        recipe=fact.labels.get(labels.RECIPE, ""),
        model=fact.labels.get(labels.SERVED_NAME, ""),
        url=f"http://127.0.0.1:{fact.port}" if fact.port is not None else "",
        life=life,
        told=_told(life, look.found),
        since=_gone_since(life, look, server, nodes),
        up_since=parse_time(fact.started_at) if runs and fact.started_at else None,
        restarts=look.restarts,
        last_error=visible_line(error)[:ERROR_CHARACTERS],
        figures=server_figures(server.history),
        note=_note(look.found, lost),
    )


def _life(look: ContainerLook, server: ServerLook, *, is_whole: bool) -> Standing:
    found = look.found
    of_server = {
        Standing.SERVING: server.is_answering,
        Standing.SILENT: server.has_answered,
    }
    of_containers = {
        Standing.REMOVED: look.removed_at is not None,
        Standing.STOPPED: found.replaced is None and (found.serving is None or _is_stopped(found)),
        Standing.EXITED: not found.current.is_running,
        Standing.WORKER: found.is_of_another_head,
        Standing.BROKEN: not is_whole,
    }
    so = (life for life, is_so in (of_containers | of_server).items() if is_so)
    return next(so, Standing.STARTING)


def _is_stopped(found: Inspected) -> bool:
    return found.serving is not None and found.serving.is_stopped


def _told(life: Standing, found: Inspected) -> str:
    fact = found.current
    if life is Standing.EXITED:
        return f"exited ({fact.exit_code})" if fact.state == "exited" else fact.state
    if life is Standing.WORKER:
        return f"worker of {fact.nodes[0]}"
    return str(life.value)


def _gone_since(
    life: Standing, look: ContainerLook, server: ServerLook, nodes: tuple[NodeLook, ...]
) -> datetime | None:
    fact = look.found.current
    if life is Standing.REMOVED:
        return look.removed_at
    if life in {Standing.EXITED, Standing.STOPPED}:
        return parse_time(fact.finished_at) if fact.finished_at else None
    if life is Standing.SILENT:
        return server.silent_since
    if life is Standing.BROKEN:
        gone = (node.gone_since for node in nodes if node.name in fact.nodes)
        return min((moment for moment in gone if moment is not None), default=None)
    return None


def _lost_parts(fact: ContainerFact, nodes: tuple[NodeLook, ...]) -> Iterable[str]:
    """Say which of the other nodes of a deployment have lost their part of it."""
    if fact.rank:
        return
    by_name = {node.name: node for node in nodes}
    for name in fact.nodes[1:]:
        node = by_name.get(name)
        if node is None:
            continue
        if node.gone_since is not None:
            yield f"{name} is gone"
            continue
        known = node.parts if node.parts is not None else {fact.deployment: RUNNING}
        if (state := known.get(fact.deployment, NO_CONTAINER)) != RUNNING:
            yield f"{name}: {state}"


def _note(found: Inspected, lost: tuple[str, ...]) -> str:
    notes = list(lost)
    if found.is_half_replaced:
        notes.append("being replaced, or left half replaced: `sparkdeploy status` says which")
    return "; ".join(notes)


def _node(look: NodeLook, deployments: Iterable[ContainerLook], *, is_here: bool) -> WatchedNode:
    floors = (
        it.floor_bytes
        for it in deployments
        if it.removed_at is None and it.found.current.is_running
        if look.name in it.found.current.nodes or (is_here and not it.found.current.nodes)
    )
    return WatchedNode(
        name=look.name,
        available_bytes=look.available_bytes,
        total_bytes=look.total_bytes,
        floor_bytes=max((it for it in floors if it is not None), default=None),
        gpu=look.gpu,
        gone_since=look.gone_since,
        problem=visible_line(look.problem)[:ERROR_CHARACTERS],
    )
