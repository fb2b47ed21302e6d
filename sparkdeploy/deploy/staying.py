"""A deployment that serves, watched until it ends: its parts live and die together."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.watch import STOP_TIMEOUT_S
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.node.lock import attendant_of
from sparkdeploy.node.node import named
from sparkdeploy.server.forensics import EXIT_MEMORY_FLOOR
from sparkdeploy.server.health import death

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.settings import Settings

LOOK_EVERY_S = 2.0
CONNECT_EVERY_S = 10.0


class NoMemoryLeftError(UnhealthyError):
    """The memory guard ended it: whoever starts it again at once fills the machine again."""

    exit_code = EXIT_MEMORY_FLOOR


def stay(
    connect: Callable[[], AbstractContextManager[Nodes]],
    deployment: str,
    settings: Settings,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when a deployment was stopped or removed; what takes its place is watched on.

    So is one that somebody starts again, or changes: whoever does that decides what becomes of it.
    When a part has died the others are stopped, for they hang without it, and UnhealthyError
    says what it died of, NoMemoryLeftError where the memory guard did it. A node that does not
    answer is taken to go on: a network that is cut ends nothing, and `connect` is tried again.
    """

    def is_attended() -> bool:
        return attendant_of(settings.lock_dir, settings.node_name, deployment) is not None

    while True:
        with contextlib.suppress(NodeError), connect() as nodes:
            while _goes_on(nodes, deployment, is_attended):
                sleep(LOOK_EVERY_S)
            return
        # A connection that broke off stays so.
        sleep(CONNECT_EVERY_S)


def _goes_on(nodes: Nodes, deployment: str, is_attended: Callable[[], bool]) -> bool:
    """Look once; raise NodeError where not all was seen, and nothing seen ends it."""
    found = find_deployment(nodes.here.docker, deployment)
    if found is None:
        return is_attended()
    if found.is_half_replaced:
        return True
    head = found.serving
    if head is None or head.is_stopped:
        return is_attended()
    parts, unseen = _parts(nodes, head)
    died = next((it for it in parts if not it[1].is_running), None)
    # A part alone was stopped by nobody of ours: a `stop` ends the head first, meanwhile.
    is_ending = died is not None and (not head.is_running or _runs_still(nodes, head))
    if died is not None and is_ending and not is_attended():
        raise _end(parts, *died)
    if unseen is not None:
        raise unseen
    return True


def _runs_still(nodes: Nodes, head: ContainerFact) -> bool:
    fact = nodes.here.docker.find_container(head.container_id)
    return fact is not None and fact.is_running and fact.name == head.name


def _parts(
    nodes: Nodes, head: ContainerFact
) -> tuple[list[tuple[Node, ContainerFact]], NodeError | None]:
    """Return the parts of a head's launch that can be seen, the head first, and why not all."""
    seen, unseen = [(nodes.here, head)], None
    for name in head.nodes[1:]:
        try:
            node = nodes.node(name)
            with named(node):
                there = find_deployment(node.docker, head.deployment)
        except NodeError as error:
            unseen = error
            continue
        serving = there.serving if there is not None else None
        if serving is not None and serving.launch == head.launch:
            seen.append((node, serving))
    return seen, unseen


def _end(
    parts: list[tuple[Node, ContainerFact]], node: Node, fact: ContainerFact
) -> UnhealthyError:
    for other, part in parts:
        with contextlib.suppress(NodeError):
            other.docker.stop(part.container_id, timeout_s=STOP_TIMEOUT_S)
    error: UnhealthyError = death(node.docker, fact.container_id, fact)
    if fact.exit_code == EXIT_MEMORY_FLOOR:
        error = NoMemoryLeftError(error.message, hint=error.hint, detail=error.detail)
    if fact.nodes:
        error.message = f"{node.name}: {error.message}"
    return error
