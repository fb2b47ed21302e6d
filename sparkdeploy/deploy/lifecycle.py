"""`stop`, `start`, `restart` and `rollback`: containers that exist end or start again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import (
    deployments_in,
    find_deployment,
    look_again,
    no_deployment,
    nodes_with,
    refuse_as_worker,
)
from sparkdeploy.deploy.expectation import expectation_on
from sparkdeploy.deploy.launch import Launch, Rank, parts_elsewhere
from sparkdeploy.deploy.lock import defer_signals, deploy_lock, ranks_lock
from sparkdeploy.deploy.nodes import ClusterRecord, connect_nodes
from sparkdeploy.deploy.recovery import Recovery, abandon, end_start, recover
from sparkdeploy.deploy.removal import require_known
from sparkdeploy.deploy.serving import answers, served_by
from sparkdeploy.deploy.watch import Watch, awaited_start, start_pace
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.container import own_tags
from sparkdeploy.node.lock import watching
from sparkdeploy.node.node import named
from sparkdeploy.node.ports import is_port_free, port_owner
from sparkdeploy.recipe.schema import Limits
from sparkdeploy.server.health import ContainerDiedError
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.deploy.deployments import Inspected
    from sparkdeploy.node.container import ContainerFact, ListedContainer
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Started:
    deployment: str
    base_url: str
    model: str
    changed: bool
    """Whether something was started; False for what ran already."""
    readiness: Readiness | None = None


def stop(name: str) -> tuple[str, ...]:
    """End a deployment's containers on every node and leave them there; return their names.

    What was left half done is finished or reverted first, and a start under way given up: `start`
    brings back what served before. NodeError names the nodes that did not answer.
    """
    settings = load_settings()
    with (
        connect_nodes(settings, name) as nodes,
        deploy_lock(settings, f"stop {name}", name),
    ):
        return stop_locked(nodes, name, settings)


def stop_locked(nodes: Nodes, name: str, settings: Settings) -> tuple[str, ...]:
    """Do what `stop` does, under the lock that the caller holds."""
    found = _require_own(nodes, name)
    if end_start(nodes, name, found, settings, reason="`stop` gave it up").has_changed:
        found = _require_own(nodes, name)
    with defer_signals(), console.step(f"stop of {name}"):
        # Whoever waits for its first answer then knows that it is to stay, stopped.
        ClusterRecord.below(settings.state_dir).clear_unverified(name)
        return _stop_everywhere(nodes, found, settings)


def _require_own(nodes: Nodes, name: str) -> Inspected:
    """Return a deployment of this machine as it is now.

    Raises NodeError where there is none, or this machine is only a worker of it.
    """
    found = look_again(nodes.here, name)
    if found is None:
        raise no_deployment(name, deployments_in(nodes.here.listing))
    refuse_as_worker(found)
    return found


def start(name: str, *, drop_page_cache: bool = False) -> Started:
    """Start the very containers that were stopped, or died, and wait until they answer.

    As with `up`, memory is looked at first, and what their engine chose is compared with what was
    planned; where that fails they are stopped again. Interrupted, they go on starting. Raises
    NodeError or UnhealthyError.
    """
    settings = load_settings()
    launch = Launch(name, settings, f"start {name}")
    with connect_nodes(settings, name) as nodes, console.steps():
        try:
            return _start(nodes, launch, drop_page_cache=drop_page_cache)
        except KeyboardInterrupt:
            if launch.begun and launch.begun[-1][1].new_id is not None and not launch.is_finished:
                console.warn(f"{name} goes on starting; `sparkdeploy status` shows it")
            raise


def restart(name: str, *, drop_page_cache: bool = False) -> Started:
    settings = load_settings()
    # Between the two it is not given up: an `up --stay` goes on watching it.
    with watching(
        settings.lock_dir, settings.node_name, name, command=f"sparkdeploy restart {name}"
    ):
        stop(name)
        return start(name, drop_page_cache=drop_page_cache)


def roll_back(name: str, *, drop_page_cache: bool = False) -> Recovery:
    """Bring a deployment to a whole and earlier state, and wait until that answers.

    A replacement that was interrupted is finished when the new containers answer, and reverted
    otherwise; one that is still starting is given up. With nothing half done, the kept containers
    take the place of the current ones, which are kept in turn. As with `up`, memory is looked at
    before they start, and what their engine chose is compared with what was planned. Raises
    NodeError or UnhealthyError; the current ones are there again then, on every node.
    """
    settings = load_settings()
    launch = Launch(name, settings, f"rollback {name}")
    with connect_nodes(settings, name) as nodes, console.steps():
        try:
            with launch.lock():
                found = look_again(nodes.here, name)
                require_known(nodes, name, settings)
                refuse_as_worker(found)
                reason = "`rollback` gave it up"
                done = end_start(nodes, name, found, settings, reason=reason)
                if done.action in {"nothing", "verified"} and found is not None and found.kept:
                    start_again(nodes, launch, found.kept[0], drop_page_cache=drop_page_cache)
                elif done.action == "reverted":
                    _start_missing_ranks(nodes, launch, drop_page_cache)
            if launch.begun:
                _wait_for(launch)
        except KeyboardInterrupt:
            launch.undo()
            raise
    if done.action not in {"nothing", "verified"}:
        return done
    if not launch.begun:
        return Recovery("nothing", f"nothing to do: no earlier container of {name} is kept")
    return Recovery("returned", f"{name}: the earlier container is back and answers")


def _stop_everywhere(nodes: Nodes, found: Inspected, settings: Settings) -> tuple[str, ...]:
    """The head first, which has the API: a server that lost a rank hangs until it is stopped."""
    here, name = nodes.here, found.name
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


def _start(nodes: Nodes, launch: Launch, *, drop_page_cache: bool) -> Started:
    name, settings = launch.deployment, launch.settings
    with launch.lock():
        found = _require_own(nodes, name)
        if recover(nodes, name, found, settings).has_changed:
            found = _require_own(nodes, name)
        head = found.current
        is_whole = head.is_running and _runs_whole(nodes, head)
        if not is_whole:
            _require_port(nodes.here, head)
            start_again(nodes, launch, head, drop_page_cache=drop_page_cache)
    if not is_whole:
        return _started(head, settings, changed=True, readiness=_wait_for(launch))
    if answers(head):
        return _started(head, settings, changed=False)
    readiness = wait_for_running(nodes, launch, head)
    return _started(head, settings, changed=False, readiness=readiness)


def wait_for_running(nodes: Nodes, launch: Launch, head: ListedContainer) -> Readiness:
    """Wait for what runs already, and then finish or revert what an `up --detach` left."""
    name, settings = launch.deployment, launch.settings
    parts = {node: fact.container_id for node, fact in parts_of(nodes, head)}
    watch = watch_parts(launch, parts, nodes.here.docker)
    console.expect(awaited_start(name, watch.pace, settings))

    def finish() -> None:
        recover(nodes, name, look_again(nodes.here, name), settings)

    try:
        readiness = watch.wait()
    except ContainerDiedError as error:
        # The guard may have started it again, and it would seem to serve.
        reason = error.message
        launch.recover_after(error, lambda: abandon(nodes, name, settings, reason=reason))
        raise
    except SparkdeployError as error:
        launch.recover_after(error, finish)
        raise
    with defer_signals(), launch.lock():
        finish()
    return readiness


def _wait_for(launch: Launch) -> Readiness:
    """Wait for what `launch` started: as long as it was given at first."""
    watch = watch_parts(launch, launch.started, launch.head.host)
    console.expect(awaited_start(launch.deployment, watch.pace, launch.settings))
    return launch.wait_and_commit(watch)


def _start_missing_ranks(nodes: Nodes, launch: Launch, drop_page_cache: bool) -> None:
    """A head that came back alone hangs without its other ranks: all of them start again.

    Raises NodeError naming the rank that cannot.
    """
    found = look_again(nodes.here, launch.deployment)
    head = found.current if found is not None else None
    try:
        if head is not None and head.nodes and not _runs_whole(nodes, head):
            start_again(nodes, launch, head, drop_page_cache=drop_page_cache)
    except SparkdeployError as error:
        raise NodeError(
            f"{launch.deployment}: the old container is back, and its other ranks are not: "
            f"{error.message}",
            hint=error.hint or f"`sparkdeploy rollback {launch.deployment}` again when it is back",
        ) from error


def _runs_whole(nodes: Nodes, head: ListedContainer) -> bool:
    return all(fact.is_running for _, fact in parts_of(nodes, head))


def _require_port(here: Node, head: ContainerFact) -> None:
    """Raise NodeError where somebody has taken its port meanwhile."""
    if head.port is None or head.is_running or is_port_free(head.port):
        return
    owner = port_owner(head.port, filter(lambda it: it.is_own, here.listing))
    raise NodeError(
        f"port {head.port} of {head.deployment} is in use by {owner.describe()}",
        hint="stop that first: the container that was made listens nowhere else",
    )


def _started(
    head: ContainerFact, settings: Settings, *, changed: bool, readiness: Readiness | None = None
) -> Started:
    served = served_by(head, settings)
    url = f"http://127.0.0.1:{served.port}"
    return Started(head.deployment, url, served.model, changed, readiness)


def start_again(
    nodes: Nodes, launch: Launch, head: ListedContainer, *, drop_page_cache: bool
) -> None:
    """Start a container of this node, and all parts that it once started with, on their nodes.

    Memory is looked at before each starts, as it was planned then. Raises NodeError or
    SparkdeployError where a part is missing, or its node is in use; nothing was changed then.
    """
    parts = parts_of(nodes, head)
    expected = [expectation_on(fact) for _, fact in parts]
    ranks = [
        Rank(node, fact, made_with.memory if made_with is not None else None)
        for (node, fact), made_with in zip(parts, expected, strict=True)
    ]
    with ranks_lock([node for node, _ in parts], launch.command):
        for node in nodes:
            node.forget_listing()
        leaving = parts_elsewhere(nodes, launch.deployment, [node.name for node, _ in parts])
        launch.start(ranks, leaving, drop_page_cache=drop_page_cache)


def parts_of(nodes: Nodes, head: ListedContainer) -> list[tuple[Node, ListedContainer]]:
    """Return what is left of the launch that a head's container was part of; workers first."""
    found: list[tuple[Node, ListedContainer]] = []
    for name in head.nodes[1:]:
        node = nodes.node(name)
        if node.is_here:
            raise NodeError(f"{name} is this machine, and {head.name} names it as a worker")
        with named(node):
            deployment = find_deployment(node.docker, head.deployment)
        facts = deployment.containers if deployment is not None else ()
        fact = next((fact for fact in facts if fact.launch == head.launch), None)
        if fact is None:
            raise SparkdeployError(
                f"{head.name} is one of {len(head.nodes)} parts that started together, and {name} "
                "keeps none of them",
                hint="the earlier recipe brings it back: `sparkdeploy up RECIPE --cluster "
                f"--name {head.deployment}`",
            )
        found.append((node, fact))
    return [*found, (nodes.here, head)]


def watch_parts(launch: Launch, parts: dict[Node, str], host: DockerHost) -> Watch:
    """Return the wait for containers that run, by node; `host` is that of the head.

    It lasts as long as they were given at their first start.
    """
    head_id = next(container_id for node, container_id in parts.items() if node.is_here)
    fact = host.find_container(head_id)
    timeout_s = fact.startup_timeout_s if fact is not None else None
    return Watch(
        deployment=launch.deployment,
        command=launch.command,
        deadline_s=timeout_s if timeout_s is not None else Limits().startup_timeout_s,
        pace=pace_of(host, fact) if fact is not None else launch.command,
        parts=parts,
        settings=launch.settings,
    )


def pace_of(host: DockerHost, fact: ListedContainer) -> str:
    """Return the key under which `up` has remembered what such a start takes."""
    image = host.find_image(fact.image_id)
    tags = own_tags(image.tags) if image is not None else ()
    image_name = tags[0] if tags else fact.image_id
    return start_pace(image_name, fact.labels.get(labels.RECIPE, ""), max(len(fact.nodes), 1))
