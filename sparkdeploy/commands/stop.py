"""`stop`, `start` and `restart`: a deployment's containers end, and the very same start again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.commands.reach import everyone
from sparkdeploy.console import console
from sparkdeploy.deploy.again import parts_of, start_again, watch_again, watch_parts
from sparkdeploy.deploy.changing import SETTLE_WAIT_S, changing, crashes_dir, held_back
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import (
    find_deployment,
    nodes_with,
    refuse_as_worker,
    require_deployment,
)
from sparkdeploy.deploy.launch import Launch
from sparkdeploy.deploy.memory import PageCache
from sparkdeploy.deploy.recovery import end_start, recover
from sparkdeploy.deploy.served import served_by
from sparkdeploy.deploy.serving import answers
from sparkdeploy.deploy.watch import awaited_start
from sparkdeploy.errors import NodeError
from sparkdeploy.node.lock import watching
from sparkdeploy.node.node import named
from sparkdeploy.node.ports import is_port_free, port_owner
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from sparkdeploy.deploy.watch import Watch
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Nodes
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Started:
    deployment: str
    base_url: str
    model: str
    """What requests call it."""
    changed: bool
    """Whether something was started; False for what ran already."""
    readiness: Readiness | None = None
    """None for what answered already."""


def stop(name: str) -> tuple[str, ...]:
    """End a deployment's containers on every node and leave them there; return their names.

    What was left half done is finished or reverted first, and a start under way given up: `start`
    brings back what served before. NodeError names the nodes that did not answer.
    """
    settings = load_settings()
    with everyone(settings, name) as nodes, changing(settings, f"stop {name}"):
        return stop_locked(nodes, name, settings)


def stop_locked(nodes: Nodes, name: str, settings: Settings) -> tuple[str, ...]:
    """As `stop`, under the node's lock, which the caller holds."""
    refuse_as_worker(nodes.here.docker, name)
    require_deployment(nodes.here.docker, name)
    end_start(nodes, name, settings, reason="`stop` gave it up")
    with held_back(), console.step(f"stop of {name}"):
        # Whoever waits for its first answer then knows that it is to stay, stopped.
        ClusterRecord.below(settings.state_dir).settle(name)
        return _stop_everywhere(nodes, name, settings)


def start(name: str, page_cache: PageCache = PageCache.ASK) -> Started:
    """Start the very containers that were stopped, or died, and wait until they answer.

    As with `up`, memory is looked at first, and what their engine chose is held against what was
    planned; where that fails they are stopped again. Interrupted, they go on starting. Raises
    NodeError or UnhealthyError.
    """
    settings = load_settings()
    launch = Launch(name, crashes_dir(settings), ClusterRecord.below(settings.state_dir))
    with everyone(settings, name) as nodes, console.steps():
        try:
            return _start(nodes, launch, settings, page_cache)
        except KeyboardInterrupt:
            if launch.begun and launch.begun[-1][1].new_id is not None and not launch.is_settled:
                console.warn(f"{name} goes on starting; `sparkdeploy status` shows it")
            raise


def restart(name: str, page_cache: PageCache = PageCache.ASK) -> Started:
    """Stop it, and start the same again."""
    settings = load_settings()
    # Between the two it is not given up: an `up --stay` goes on watching it.
    with watching(
        settings.lock_dir, settings.node_name, name, command=f"sparkdeploy restart {name}"
    ):
        stop(name)
        return start(name, page_cache)


def _stop_everywhere(nodes: Nodes, name: str, settings: Settings) -> tuple[str, ...]:
    """The head first, which has the API: a server that lost a rank hangs until it is stopped."""
    here = nodes.here
    found = require_deployment(here.docker, name)
    stopped = _stop_here(here.docker, found.serving)
    unreached: list[str] = []
    for other in nodes_with(found, ClusterRecord.below(settings.state_dir).nodes(name)):
        # config.yaml may have called this machine otherwise when it started them.
        if other in {here.name, *found.current.nodes[:1]}:
            continue
        try:
            node = nodes.node(other)
            with named(node):
                there = find_deployment(node.docker, name)
                is_ours = there is not None and there.current.nodes[:1] == found.current.nodes[:1]
                if there is not None and is_ours:
                    stopped += [f"{other}:{it}" for it in _stop_here(node.docker, there.serving)]
        except NodeError as error:
            unreached.append(error.message)
    if unreached:
        raise NodeError(
            f"{name} is stopped, and its part may go on where nobody answers: "
            + "; ".join(unreached),
            hint=f"`sparkdeploy stop {name}` again when it is back",
        )
    return tuple(stopped)


def _stop_here(host: DockerHost, fact: ContainerFact | None) -> list[str]:
    if fact is None or not fact.is_running:
        return []
    host.stop(fact.container_id)
    return [fact.name]


def _start(nodes: Nodes, launch: Launch, settings: Settings, page_cache: PageCache) -> Started:
    name, command = launch.deployment, f"start {launch.deployment}"
    settling = partial(changing, settings, command, wait_s=SETTLE_WAIT_S)
    host = nodes.here.docker
    with changing(settings, command):
        refuse_as_worker(host, name)
        require_deployment(host, name)
        recover(nodes, name, settings)
        head = _head(host, name)
        is_whole = head.is_running and _runs_whole(nodes, head)
        if not is_whole:
            _require_port(host, head)
            start_again(nodes, launch, head, settings, command=command, page_cache=page_cache)
    if is_whole and answers(head):
        return _started(head, settings, changed=False)
    watch = _watch(nodes, launch, head, settings, command)
    console.expect(awaited_start(name, watch.pace, settings))
    if is_whole:
        try:
            readiness = watch.wait()
        finally:
            # What an `up --detach` left to be settled.
            with held_back(), settling():
                recover(nodes, name, settings)
        return _started(head, settings, changed=False, readiness=readiness)
    readiness = launch.wait_and_settle(watch.wait, settling, watch.details)
    return _started(head, settings, changed=True, readiness=readiness)


def _head(host: DockerHost, name: str) -> ContainerFact:
    """Return what serves under the name, or served; where nothing does, the newest one kept."""
    return require_deployment(host, name).current


def _runs_whole(nodes: Nodes, head: ContainerFact) -> bool:
    return all(fact.is_running for _, fact in parts_of(nodes, head))


def _require_port(host: DockerHost, head: ContainerFact) -> None:
    """Raise NodeError where somebody has taken its port meanwhile."""
    if head.port is None or head.is_running or is_port_free(head.port):
        return
    owner = port_owner(head.port, host.own_containers())
    raise NodeError(
        f"port {head.port} of {head.deployment} is in use by {owner.describe()}",
        hint="stop that first: the container that was made listens nowhere else",
    )


def _watch(
    nodes: Nodes, launch: Launch, head: ContainerFact, settings: Settings, command: str
) -> Watch:
    if launch.begun:
        return watch_again(launch, settings, command)
    parts = {node: fact.container_id for node, fact in parts_of(nodes, head)}
    return watch_parts(launch.deployment, parts, nodes.here.docker, settings, command)


def _started(
    head: ContainerFact, settings: Settings, *, changed: bool, readiness: Readiness | None = None
) -> Started:
    served = served_by(head, settings)
    url = f"http://127.0.0.1:{served.port}"
    return Started(head.deployment, url, served.model, changed, readiness)
