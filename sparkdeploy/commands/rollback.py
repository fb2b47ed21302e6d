"""`rollback`: end a replacement under way or left half done, or go back to the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.commands.cluster_recovery import end_start_on, nodes_of, nodes_on
from sparkdeploy.commands.drafting import connect
from sparkdeploy.console import console
from sparkdeploy.deploy import replace as replacing
from sparkdeploy.deploy.changing import SETTLE_WAIT_S, changing, crashes_dir, recover
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.expectation import expectation_on
from sparkdeploy.deploy.memory import PageCache, make_room_for
from sparkdeploy.deploy.recovery import abandon
from sparkdeploy.deploy.serving import check_truth
from sparkdeploy.deploy.watch import Start, Watch
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.recipe.schema import Limits
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from sparkdeploy.deploy.deployments import Deployment
    from sparkdeploy.deploy.expectation import Expectation
    from sparkdeploy.deploy.recovery import Recovery
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What `rollback` did."""

    action: str
    """nothing, finished, reverted or returned."""
    text: str


def roll_back(name: str, page_cache: PageCache = PageCache.ASK) -> RolledBack:
    """Bring a deployment to a whole and earlier state, and wait until that answers.

    A replacement that was interrupted is finished when the new container answers, and reverted
    otherwise; one that is still starting is given up. With nothing half done, the newest kept
    container takes the place of the current one, which is kept in turn. As with `up`, memory is
    looked at before it starts, and what its engine chose is held against what was planned for it:
    raises NodeError or UnhealthyError, and the current one is there again.

    On a cluster all nodes are finished or reverted, as the head goes; with nothing half done it
    raises SparkdeployError, for no earlier containers are kept there.
    """
    settings = load_settings()
    with connect(settings) as host:
        with changing(settings, f"rollback {name}"):
            begun = _begin(host, name, settings, page_cache)
        if isinstance(begun, RolledBack):
            return begun
        watch = Watch(_start_of(host, begun), host, settings)

        def wait(container_id: str) -> None:
            readiness = watch.wait(container_id)
            expected = _expected_of(host, container_id)
            if expected is not None:
                check_truth(expected, readiness.facts)

        replacing.see_through(
            begun,
            wait=wait,
            changing=lambda: changing(settings, f"rollback {name}", wait_s=SETTLE_WAIT_S),
            details=watch.details,
        )
    return RolledBack("returned", f"{name}: the earlier container is back and answers")


def _begin(
    host: DockerHost, name: str, settings: Settings, page_cache: PageCache
) -> RolledBack | replacing.Replacement:
    nodes = nodes_of(host, name, settings)
    done = end_start_on(nodes, name, settings) if nodes else _end_start(host, name, settings)
    if done.action != "nothing":
        return RolledBack(done.action, done.text)
    found = find_deployment(host, name)
    _refuse_on_cluster(found)
    if found is None or not found.kept:
        return RolledBack("nothing", f"nothing to do: no earlier container of {name} is kept")
    kept = found.kept[0]
    expected = expectation_on(kept)
    if expected is None:
        console.warn(f"{kept.name} is of an earlier version: its memory and log are not checked")
    claim = expected.memory if expected is not None else None
    return replacing.begin_return(
        host,
        kept,
        crashes_dir=crashes_dir(settings),
        before_start=lambda: make_room_for(host, name, claim, page_cache),
    )


def _end_start(host: DockerHost, name: str, settings: Settings) -> Recovery:
    done = recover(host, name, settings)
    if done.action != "waiting":
        return done
    crashes = crashes_dir(settings)
    done = abandon(host, name, crashes_dir=crashes, reason="`rollback` gave it up")
    console.info(done.text)
    return done


def _refuse_on_cluster(found: Deployment | None) -> None:
    """Going back on one node alone would leave a part that waits for the others for ever."""
    if found is not None and any(map(nodes_on, (found.serving, *found.kept[:1]))):
        raise SparkdeployError(
            f"nothing of {found.name} is half done, and `rollback` cannot go back to an earlier "
            "container on a cluster: none are kept there",
            hint="the earlier recipe brings it back: `sparkdeploy up RECIPE --cluster "
            f"--name {found.name}`",
        )


def _expected_of(host: DockerHost, container_id: str) -> Expectation | None:
    fact = host.find_container(container_id)
    return expectation_on(fact) if fact is not None else None


def _start_of(host: DockerHost, replacement: replacing.Replacement) -> Start:
    fact = host.find_container(replacement.container_id)
    timeout_s = fact.startup_timeout_s if fact is not None else None
    return Start(
        deployment=replacement.deployment,
        command=f"rollback {replacement.deployment}",
        deadline_s=timeout_s if timeout_s is not None else Limits().startup_timeout_s,
        pace=_pace(fact),
    )


def _pace(fact: ContainerFact | None) -> str:
    if fact is None:
        return "rollback"
    return f"{fact.image_id} {fact.labels.get(labels.RECIPE, '')}"
