"""`up --stay`: what systemd runs, so that it knows when a deployment serves and when it ends."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TypeAlias

from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.nodes import connect_nodes
from sparkdeploy.deploy.wait import silent_rank, stop_all
from sparkdeploy.errors import (
    CheckpointError,
    ConsentNeededError,
    NodeError,
    RecipeError,
    UnhealthyError,
)
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.lock import attendant_of
from sparkdeploy.node.node import Node, Nodes, in_background, named
from sparkdeploy.node.reports import parse_time
from sparkdeploy.server.crash import EXIT_MEMORY_FLOOR
from sparkdeploy.server.health import death
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console

NOTIFY = "NOTIFY_SOCKET"
BOOT_S = 600.0
"""How long after the machine's start a disk, a network or another node may be late."""
TRY_AGAIN_S = 20.0
LOOK_EVERY_S = 2.0
"""Between two looks while another command changes the deployment."""
CONNECT_EVERY_S = 10.0
RankFact: TypeAlias = tuple[Node, ContainerFact]


def notify_systemd(state: str) -> None:
    """Send one word of sd_notify(3); nothing where nobody asked for it."""
    address = os.environ.get(NOTIFY, "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        # An abstract address begins with a zero byte.
        notifier.sendto(state.encode(), address.replace("@", "\0", 1))


def start_at_boot(
    start: Callable[[], None],
    sleep: Callable[[float], None] = time.sleep,
    uptime_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
) -> None:
    """Start; for systemd, and while the machine boots, again after what a late disk may cause."""
    while True:
        try:
            return start()
        except ConsentNeededError:
            raise
        except (RecipeError, NodeError, CheckpointError) as error:
            if not os.environ.get(NOTIFY) or uptime_s() > BOOT_S:
                raise
            console.warn(f"{error.message}; the machine booted a moment ago, so it is tried again")
        sleep(TRY_AGAIN_S)


class Ends:
    """The ends of containers, of which each is waited for in a thread of its own."""

    def __init__(self) -> None:
        self._waits: dict[str, Future[None]] = {}

    def wait(self, ranks: Iterable[RankFact]) -> None:
        """Return when one has ended, or its node does not answer any more."""
        for node, fact in ranks:
            key = fact.container_id
            if key not in self._waits:
                self._waits[key] = in_background(partial(node.docker.wait, key))
        wait(self._waits.values(), return_when=FIRST_COMPLETED)
        for key in [key for key, it in self._waits.items() if it.done()]:
            # Why nobody answers is seen the next time.
            with contextlib.suppress(NodeError):
                self._waits.pop(key).result()


def stay_with(
    deployment: str,
    sleep: Callable[[float], None] = time.sleep,
    make_ends: Callable[[], Ends] = Ends,
) -> None:
    """Tell systemd that it serves; return when it was stopped, UnhealthyError when a rank died.

    Whoever changes it decides what becomes of it. A network that is cut ends nothing.
    """
    notify_systemd("READY=1")
    settings = load_settings()
    is_attended = partial(attendant_of, settings.lock_dir, settings.node_name, deployment)
    while True:
        with contextlib.suppress(NodeError), connect_nodes(settings, deployment) as nodes:
            ends = make_ends()
            while (ranks := _running_ranks(nodes, deployment, is_attended)) is not None:
                if ranks:
                    ends.wait(ranks)
                else:
                    sleep(LOOK_EVERY_S)
            break
        # A connection that broke off stays so.
        sleep(CONNECT_EVERY_S)
    console.info(f"{deployment} was stopped")


def _running_ranks(
    nodes: Nodes, deployment: str, is_attended: Callable[[], object]
) -> list[RankFact] | None:
    """Return the ranks when all of them run, none during a change, None when it was stopped."""
    found = find_deployment(nodes.here.docker, deployment)
    if found is not None and found.is_half_replaced:
        return []
    head = found.serving if found is not None else None
    if head is None or head.is_stopped:
        return [] if is_attended() else None
    ranks, unseen = _ranks_of(nodes, head)
    died = next((it for it in ranks if not it[1].is_running), None)
    # A rank alone was stopped by nobody of ours: a `stop` ends the head first, meanwhile.
    now = nodes.here.docker.find_container(head.container_id) if died is not None else None
    runs_still = now is not None and now.is_running and now.name == head.name
    is_ending = not head.is_running or runs_still
    if died is not None and is_ending and not is_attended():
        stop_all((node, fact.container_id) for node, fact in ranks)
        raise _death_of(*died, ranks)
    if unseen is not None:
        raise unseen
    return ranks if died is None else []


def _ranks_of(nodes: Nodes, head: ContainerFact) -> tuple[list[RankFact], NodeError | None]:
    """Return the ranks of a head's launch that can be seen, the head first, and why not all."""
    seen: list[RankFact] = [(nodes.here, head)]
    unseen: NodeError | None = None
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


def _death_of(node: Node, fact: ContainerFact, ranks: Iterable[RankFact]) -> UnhealthyError:
    error = death(node.docker, fact.container_id, fact)
    if (ended_at := parse_time(fact.finished_at)) is not None:
        others = [(it, its.container_id, 0.0) for it, its in ranks]
        error.message += silent_rank(error.cause, node, ended_at, others)
    if fact.exit_code == EXIT_MEMORY_FLOOR:
        # Whoever starts it again at once fills the machine again: units know the code.
        error.exit_code = EXIT_MEMORY_FLOOR
    if fact.nodes:
        error.message = f"{node.name}: {error.message}"
    return error
