"""`rollback`: end a replacement under way or left half done, or go back to the one before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.commands.reach import everyone
from sparkdeploy.console import console
from sparkdeploy.deploy.changing import SETTLE_WAIT_S, changing, crashes_dir, starting_together
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import find_deployment, refuse_as_worker
from sparkdeploy.deploy.expectation import expectation_on
from sparkdeploy.deploy.launch import Launch, parts_elsewhere
from sparkdeploy.deploy.memory import PageCache, make_room_for
from sparkdeploy.deploy.recovery import Recovery, end_start
from sparkdeploy.deploy.watch import Watch, awaited_start, start_pace
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.container import own_tags
from sparkdeploy.node.node import named
from sparkdeploy.plan.problems import owner_of
from sparkdeploy.recipe.schema import Limits
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.settings import Settings


def roll_back(name: str, page_cache: PageCache = PageCache.ASK) -> Recovery:
    """Bring a deployment to a whole and earlier state, and wait until that answers.

    A replacement that was interrupted is finished when the new containers answer, and reverted
    otherwise; one that is still starting is given up. With nothing half done, the newest kept
    containers take the place of the current ones, which are kept in turn. As with `up`, memory is
    looked at before they start, and what their engine chose is held against what was planned:
    raises NodeError or UnhealthyError, and the current ones are there again, on every node.
    """
    settings = load_settings()
    launch = Launch(name, crashes_dir(settings), ClusterRecord.below(settings.state_dir))
    settling = partial(changing, settings, f"rollback {name}", wait_s=SETTLE_WAIT_S)
    with everyone(settings, name) as nodes, console.steps():
        try:
            with changing(settings, f"rollback {name}"):
                refuse_as_worker(nodes.here.docker, name)
                done = _begin(nodes, launch, settings, page_cache)
            if done is not None:
                return done
            watch = _watch(launch, settings)
            console.expect(awaited_start(name, watch.pace, settings))
            launch.wait_and_settle(watch.wait, settling, watch.details)
        except KeyboardInterrupt:
            launch.undo(settling)
            raise
    return Recovery("returned", f"{name}: the earlier container is back and answers")


def _begin(
    nodes: Nodes, launch: Launch, settings: Settings, page_cache: PageCache
) -> Recovery | None:
    """End what is half done, or start what was kept; None when that is to be waited for."""
    name = launch.deployment
    done = end_start(nodes, name, settings, reason="`rollback` gave it up")
    if done.action not in {"nothing", "held"}:
        return done
    found = find_deployment(nodes.here.docker, name)
    if found is None or not found.kept:
        return Recovery("nothing", f"nothing to do: no earlier container of {name} is kept")
    kept = _kept_parts(nodes, found.kept[0])
    claims = {}
    for node, fact in kept:
        expected = expectation_on(fact)
        if expected is None:
            console.warn(
                f"{fact.name} on {node.name} is of an earlier version: its memory and log are not "
                "checked"
            )
        claims[node.name] = expected.memory if expected is not None else None

    def make_room(node: Node) -> None:
        make_room_for(node, name, claims[node.name], page_cache)

    with starting_together([node for node, _ in kept], settings, f"rollback {name}"):
        for node, _ in kept:
            _refuse_others(node, nodes.here.name)
        leaving = parts_elsewhere(nodes, name, [node.name for node, _ in kept])
        launch.start(kept, make_room, leaving)
    return None


def _refuse_others(node: Node, head: str) -> None:
    """As `up` does: two launches of several nodes never mix."""
    if node.is_here:
        return
    with named(node):
        facts = node.docker.own_containers()
    for fact in facts:
        if fact.is_running and fact.nodes and (owner := owner_of(fact, node.name)) != head:
            raise NodeError(
                f"{node.name}: in use: {owner}'s cluster deployment {fact.deployment} runs there",
                hint=f"on {owner}: sparkdeploy down {fact.deployment}",
            )


def _kept_parts(nodes: Nodes, head: ContainerFact) -> list[tuple[Node, ContainerFact]]:
    """Return what was kept of the launch that a kept container was part of; workers first."""
    found = []
    for name in head.nodes[1:]:
        node = nodes.node(name)
        if node.is_here:
            raise NodeError(f"{name} is this machine, and a kept container names it as a worker")
        with named(node):
            deployment = find_deployment(node.docker, head.deployment)
        kept = deployment.kept if deployment is not None else ()
        fact = next((fact for fact in kept if fact.launch == head.launch), None)
        if fact is None:
            raise SparkdeployError(
                f"{head.name} is one of {len(head.nodes)} parts that started together, and {name} "
                "keeps none of them",
                hint="the earlier recipe brings it back: `sparkdeploy up RECIPE --cluster "
                f"--name {head.deployment}`",
            )
        found.append((node, fact))
    return [*found, (nodes.here, head)]


def _pace(launch: Launch, fact: ContainerFact) -> str:
    """Return the key under which `up` has remembered what such a start takes."""
    image = launch.head.host.find_image(fact.image_id)
    tags = own_tags(image.tags) if image is not None else ()
    image_name = tags[0] if tags else fact.image_id
    return start_pace(image_name, fact.labels.get(labels.RECIPE, ""), len(launch.started))


def _watch(launch: Launch, settings: Settings) -> Watch:
    fact = launch.head.host.find_container(launch.head.container_id)
    timeout_s, pace = None, "rollback"
    if fact is not None:
        timeout_s = fact.startup_timeout_s
        pace = _pace(launch, fact)
    return Watch(
        deployment=launch.deployment,
        command=f"rollback {launch.deployment}",
        deadline_s=timeout_s if timeout_s is not None else Limits().startup_timeout_s,
        pace=pace,
        parts=launch.started,
        settings=settings,
    )
