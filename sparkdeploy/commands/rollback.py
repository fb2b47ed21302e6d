"""`rollback`: end a replacement under way or left half done, or go back to the one before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.commands.reach import everyone
from sparkdeploy.console import console
from sparkdeploy.deploy.again import start_again, watch_again
from sparkdeploy.deploy.changing import SETTLE_WAIT_S, changing, crashes_dir
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import find_deployment, refuse_as_worker
from sparkdeploy.deploy.launch import Launch
from sparkdeploy.deploy.memory import PageCache
from sparkdeploy.deploy.recovery import Recovery, end_start
from sparkdeploy.deploy.watch import awaited_start
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from sparkdeploy.node.node import Nodes
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
            watch = watch_again(launch, settings, f"rollback {name}")
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
    command = f"rollback {name}"
    start_again(nodes, launch, found.kept[0], settings, command=command, page_cache=page_cache)
    return None
