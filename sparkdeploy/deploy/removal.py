"""`down`: the containers of a deployment end and go, on every node.

Apart from the other verbs, of which it loads nothing: it starts and watches no server.
"""

import contextlib
from collections.abc import Iterator

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import (
    Inspected,
    Listed,
    deployments_in,
    find_deployment,
    look_again,
    no_deployment,
    nodes_with,
    refuse_as_worker,
    remove_containers,
)
from sparkdeploy.deploy.lock import deploy_lock
from sparkdeploy.deploy.nodes import ClusterRecord, connect_nodes
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.cluster import this_node
from sparkdeploy.node.facts import is_another
from sparkdeploy.node.node import Nodes, named
from sparkdeploy.plan.container import container_name
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.terminal.console import console

REMOVAL = "its containers are stopped and removed, its images and checkpoints stay"


@contextlib.contextmanager
def _locked(
    name: str, settings: Settings, *, asks: bool = False, is_named: bool = True
) -> Iterator[tuple[Nodes, Inspected | None]]:
    with connect_nodes(settings, name) as nodes:
        listed = deployments_in(nodes.here.listing).get(name)
        if listed is not None and asks:
            require_consent(listed, "removed", REMOVAL, is_named=is_named)
        with deploy_lock(settings, f"down {name}", name):
            yield nodes, look_again(nodes.here, name)


def require_consent(found: Listed, done: str, fate: str, *, is_named: bool) -> None:
    """Raise SparkdeployError unless somebody agrees to what ends a running server."""
    fact = found.current
    if found.is_of_another_head or (is_named and not fact.is_running):
        return
    user = f" of {fact.user}" if is_another(fact.user) else ""
    where = f"recipe {fact.labels.get(labels.RECIPE, 'unknown')}, port {fact.port}"
    name = f"deployment {found.name}{user} ({where})"
    state = "is running" if fact.is_running else "is stopped"
    if not console.confirm(f"{name} {state}; {fate}. Go on?"):
        raise SparkdeployError(f"{name} {state}, and was not {done}", hint="say yes, or pass --yes")


def down(
    name: str, *, missing_ok: bool = False, asks: bool = False, is_named: bool = True
) -> tuple[str, ...]:
    """Stop and remove one deployment on all of its nodes; return the names of its containers."""
    settings = load_settings()
    with _locked(name, settings, asks=asks, is_named=is_named) as (nodes, found):
        if not missing_ok:
            require_known(nodes, name, ClusterRecord.below(settings.state_dir))
        refuse_as_worker(found)
        if found is not None and is_another(found.current.user):
            console.warn(f"{name} was deployed by {found.current.user}")
        return remove_deployment(nodes, name, found, settings)


def down_all(*, asks: bool = False) -> tuple[list[str], list[SparkdeployError]]:
    """Remove every deployment of this machine; return its containers, and why some stayed."""
    settings = load_settings()
    with this_node(settings) as nodes:
        found = deployments_in(nodes.here.listing)
    if asks and found:
        states = (
            f"{name} ({'running' if it.current.is_running else 'stopped'})"
            for name, it in found.items()
        )
        named_all = f"{len(found)} deployments go: {', '.join(states)}"
        if not console.confirm(f"{named_all}; images and checkpoints stay. Go on?"):
            raise SparkdeployError("no deployment was removed", hint="say yes, or pass --yes")
    removed: list[str] = []
    errors: list[SparkdeployError] = []
    for name in dict.fromkeys((*found, *ClusterRecord.below(settings.state_dir).deployments())):
        if name in found and found[name].is_of_another_head:
            # What is noted of it is older than what that head has put here.
            head = found[name].current.nodes[0]
            console.warn(f"{name} stays: {head} heads it, and this machine is a worker")
            continue
        try:
            with _locked(name, settings) as (there, current):
                removed += remove_deployment(there, name, current, settings)
        except SparkdeployError as error:
            errors.append(error)
    return removed, errors


def remove_deployment(
    nodes: Nodes, name: str, found: Inspected | None, settings: Settings
) -> tuple[str, ...]:
    """Remove a deployment everywhere; what a node still has that does not answer stays noted."""
    record = ClusterRecord.below(settings.state_dir)
    facts = found.containers if found is not None else ()
    # config.yaml may have called this machine otherwise when it started them.
    own = {nodes.here.name, *(fact.nodes[0] for fact in facts if fact.nodes and not fact.rank)}
    removed = [*remove_containers(nodes.here.docker, facts)]
    left: list[str] = []
    for other in nodes_with(found, record.nodes(name)):
        if other in own or _is_forgotten(nodes, other, name, settings):
            continue
        try:
            node = nodes.node(other)
            with named(node):
                there = find_deployment(node.docker, name)
                facts = there.containers if there is not None else ()
                ours = [fact for fact in facts if fact.nodes and fact.nodes[0] in own]
                removed += [f"{other}:{it}" for it in remove_containers(node.docker, ours)]
        except NodeError as error:
            left.append(other)
            console.warn(
                f"{error.message}; {container_name(name)} may remain there: run `sparkdeploy down "
                f"{name}` again when it is back"
            )
    record.note(name, tuple(left))
    record.forget_answers(name)
    return tuple(removed)


def _is_forgotten(nodes: Nodes, other: str, name: str, settings: Settings) -> bool:
    config = nodes.config
    if (settings.cluster is not None) if config is None else (other in config.names):
        return False
    console.warn(
        f"{other} is not in config.yaml, and what it may have of {name} is forgotten; on that "
        f"machine: docker rm -f {container_name(name)}"
    )
    return True


def require_known(nodes: Nodes, name: str, record: ClusterRecord) -> None:
    """Raise NodeError where no deployment has the name, and nothing of one is left over."""
    known = dict.fromkeys((*deployments_in(nodes.here.listing), *record.deployments()))
    if name not in known:
        raise no_deployment(name, known)
