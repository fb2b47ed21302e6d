"""`stop`, `start`, `restart` and `rollback`: what is done with a deployment that is there."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import (
    Inspected,
    Listed,
    deployments_in,
    find_deployment,
    no_deployment,
    nodes_with,
    refuse_as_worker,
)
from sparkdeploy.deploy.expectation import expectation_on
from sparkdeploy.deploy.launch import Launch, Rank
from sparkdeploy.deploy.lock import defer_signals, ranks_lock
from sparkdeploy.deploy.nodes import connect_nodes
from sparkdeploy.deploy.recovery import Recovery, abandon, end_start, recover
from sparkdeploy.deploy.removal import require_consent, require_known
from sparkdeploy.deploy.serving import answers, served_by
from sparkdeploy.deploy.wait import Watch, awaited_start
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.container import ContainerFact, ListedContainer
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.lock import watching
from sparkdeploy.node.node import Node, Nodes, named
from sparkdeploy.node.ports import is_port_free, port_owner
from sparkdeploy.recipe.schema import Limits
from sparkdeploy.server.health import ContainerDiedError, Readiness
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console


@dataclass(frozen=True, slots=True)
class Started:
    deployment: str
    base_url: str
    model: str
    changed: bool
    startup_s: float | None = None


@contextlib.contextmanager
def _connected(verb: str, name: str, *, drop_page_cache: bool = False) -> Iterator[Launch]:
    settings = load_settings()
    with connect_nodes(settings, name) as nodes:
        yield Launch(nodes, name, settings, f"{verb} {name}", drop_page_cache)


def stop(name: str) -> tuple[str, ...]:
    """End a deployment's containers on every node and leave them there; return their names."""
    with _connected("stop", name) as launch, launch.lock():
        return stop_locked(launch)


def stop_locked(launch: Launch) -> tuple[str, ...]:
    found = _require_own(launch)
    if end_start(launch, found, reason="`stop` gave it up").has_changed:
        found = _require_own(launch)
    with defer_signals(), console.step(f"stop of {launch.deployment}"):
        # Whoever waits for its first answer then knows that it is to stay, stopped.
        launch.record.clear_unverified(launch.deployment)
        return _stop_everywhere(launch, found)


def _require_own(launch: Launch) -> Inspected:
    """Return a deployment that this machine heads, as it is now; NodeError for any other."""
    found = launch.find_here()
    if found is None:
        raise no_deployment(launch.deployment, deployments_in(launch.nodes.here.listing))
    refuse_as_worker(found)
    return found


def start(name: str, *, drop_page_cache: bool = False) -> Started:
    """Start the very containers that were stopped, or died, and wait until they answer."""
    with _connected("start", name, drop_page_cache=drop_page_cache) as launch, console.steps():
        try:
            return _start(launch)
        except KeyboardInterrupt:
            if launch.begun and launch.begun[-1].new_id is not None and not launch.is_finished:
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


def roll_back(
    name: str, *, drop_page_cache: bool = False, asks: bool = False, is_named: bool = True
) -> Recovery:
    """Bring a deployment to a whole and earlier state, and wait until that answers.

    What was interrupted is finished or reverted; else the kept containers take the place of the
    current ones, which are kept in turn. With `asks` somebody agrees before a server ends.
    """
    with _connected("rollback", name, drop_page_cache=drop_page_cache) as launch, console.steps():
        listed = deployments_in(launch.nodes.here.listing).get(name)
        if listed is not None and asks and (fate := _fate(listed, launch)):
            require_consent(listed, "rolled back", fate, is_named=is_named)
        try:
            with launch.lock():
                found = launch.find_here()
                require_known(launch.nodes, name, launch.record)
                refuse_as_worker(found)
                done = end_start(launch, found, reason="`rollback` gave it up")
                if done.action in {"nothing", "verified"} and found is not None and found.kept:
                    _start_again(launch, found.kept[0])
                elif done.action == "reverted":
                    _start_missing_ranks(launch)
            if launch.begun:
                _wait_for_start(launch)
        except KeyboardInterrupt:
            launch.undo()
            raise
    if done.action not in {"nothing", "verified"}:
        return done
    if not launch.begun:
        return Recovery("nothing", f"nothing to do: no earlier container of {name} is kept")
    return Recovery("returned", f"{name}: the earlier container is back and answers")


def _fate(found: Listed, launch: Launch) -> str:
    """Say what `rollback` does; empty where there is nothing to do."""
    if found.is_half_replaced:
        return "the replacement under way ends, and what was there before comes back"
    if launch.record.is_unverified(found.name, found.current.container_id):
        return "its start is given up"
    if not found.kept:
        return ""
    recipe = found.kept[0].labels.get(labels.RECIPE, "unknown")
    return f"the container before it (recipe {recipe}) starts in its place"


def _stop_everywhere(launch: Launch, found: Inspected) -> tuple[str, ...]:
    """Stop the head first, which has the API: without a rank it hangs until it is stopped."""
    nodes, name, head = launch.nodes, found.name, found.current.nodes[:1]
    stopped = _stop_on(nodes.here.docker, found)
    unreached: list[str] = []
    for other in nodes_with(found, launch.record.nodes(name)):
        # config.yaml may have called this machine otherwise when it started them.
        if other in {nodes.here.name, *head}:
            continue
        try:
            node = nodes.node(other)
            with named(node):
                there = find_deployment(node.docker, name)
                if there is not None and head and there.current.nodes[:1] == head:
                    stopped += [f"{other}:{it}" for it in _stop_on(node.docker, there)]
        except NodeError as error:
            unreached.append(error.message)
    if unreached:
        raise NodeError(
            f"{name} is stopped, and its ranks may go on where nobody answers: "
            + "; ".join(unreached),
            hint=f"`sparkdeploy stop {name}` again when it is back",
        )
    return tuple(stopped)


def _stop_on(host: DockerHost, found: Inspected) -> list[str]:
    fact = found.serving
    if fact is None or not fact.is_running:
        return []
    host.stop(fact.container_id)
    return [fact.name]


def _start(launch: Launch) -> Started:
    with launch.lock():
        found = _require_own(launch)
        if recover(launch, found).has_changed:
            found = _require_own(launch)
        head = found.current
        starts = not (head.is_running and _runs_whole(launch.nodes, head))
        if starts:
            _require_port(launch.nodes.here, head)
            _start_again(launch, head)
    startup_s: float | None = None
    if starts:
        startup_s = _wait_for_start(launch).startup_s
    elif not answers(head):
        startup_s = wait_for_running(launch, head).startup_s
    served = served_by(head, launch.settings)
    url = f"http://127.0.0.1:{served.port}"
    return Started(head.deployment, url, served.model, starts, startup_s)


def wait_for_running(launch: Launch, head: ListedContainer) -> Readiness:
    """Wait for what runs already, and then finish or revert what an `up --detach` left."""
    ranks = {node: fact.container_id for node, fact in _ranks_of(launch.nodes, head)}
    watch = _watch(launch, ranks)
    try:
        readiness = watch.wait()
    except SparkdeployError as error:
        try:
            with defer_signals(), launch.lock():
                if isinstance(error, ContainerDiedError):
                    # The guard may have started it again, and it would seem to serve.
                    abandon(launch, reason=error.message)
                else:
                    recover(launch, launch.find_here())
        except SparkdeployError as failure:
            # Why it failed is what the user has to know.
            error.message += f"; what was there before is not back yet: {failure.message}"
        raise
    with defer_signals(), launch.lock():
        recover(launch, launch.find_here())
    return readiness


def _wait_for_start(launch: Launch) -> Readiness:
    return launch.wait_and_commit(_watch(launch, launch.started))


def _start_missing_ranks(launch: Launch) -> None:
    """Start all ranks again where a head came back alone, which hangs without its other ranks."""
    found = launch.find_here()
    head = found.current if found is not None else None
    try:
        if head is not None and head.nodes and not _runs_whole(launch.nodes, head):
            _start_again(launch, head)
    except SparkdeployError as error:
        raise NodeError(
            f"{launch.deployment}: the old container is back, and its other ranks are not: "
            f"{error.message}",
            hint=error.hint or f"`sparkdeploy rollback {launch.deployment}` again when it is back",
        ) from error


def _runs_whole(nodes: Nodes, head: ListedContainer) -> bool:
    return all(fact.is_running for _, fact in _ranks_of(nodes, head))


def _require_port(here: Node, head: ContainerFact) -> None:
    if head.port is None or head.is_running or is_port_free(head.port):
        return
    owner = port_owner(head.port, filter(lambda it: it.is_own, here.listing))
    raise NodeError(
        f"port {head.port} of {head.deployment} is in use by {owner.describe()}",
        hint="stop that first: the container that was made listens nowhere else",
    )


def _start_again(launch: Launch, head: ListedContainer) -> None:
    """Start a container of this node, and all ranks that it once started with, on their nodes."""
    ranks = []
    for node, fact in _ranks_of(launch.nodes, head):
        made_with = expectation_on(fact)
        ranks.append(Rank(node, fact, made_with.memory if made_with is not None else None))
    with ranks_lock([rank.node for rank in ranks], launch.command):
        for node in launch.nodes:
            node.forget_listing()
        launch.start(ranks)


def _ranks_of(nodes: Nodes, head: ListedContainer) -> list[tuple[Node, ListedContainer]]:
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
                f"{head.name} is one of {len(head.nodes)} ranks that started together, and {name} "
                "keeps none of them",
                hint="the earlier recipe brings it back: `sparkdeploy up RECIPE --cluster "
                f"--name {head.deployment}`",
            )
        found.append((node, fact))
    return [*found, (nodes.here, head)]


def _watch(launch: Launch, ranks: dict[Node, str]) -> Watch:
    """Return the wait for containers that run; it lasts as long as at their first start."""
    fact = launch.nodes.here.docker.find_container(ranks[launch.nodes.here])
    timeout_s = fact.startup_timeout_s if fact is not None else None
    key = fact.labels.get(labels.TIMING, launch.command) if fact is not None else launch.command
    console.expect(awaited_start(launch.deployment, key, launch.settings))
    deadline_s = timeout_s if timeout_s is not None else Limits().startup_timeout_s
    return Watch(launch, ranks, key, deadline_s)
