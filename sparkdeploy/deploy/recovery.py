"""Finishing or reverting what a command that died left half done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import Deployment, find_deployment, uptime_s
from sparkdeploy.deploy.replace import Replacement, drop_kept, returning_or_made
from sparkdeploy.errors import UnhealthyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found half done, and what became of it."""

    action: Literal["nothing", "waiting", "finished", "reverted"]
    text: str = ""


def recover(
    host: DockerHost,
    deployment: str,
    *,
    crashes_dir: Path,
    is_answering: Callable[[ContainerFact], bool],
    now: datetime,
    check: Callable[[ContainerFact], None] = lambda _fact: None,
) -> Recovery:
    """Finish or revert what a CLI that died or detached left half done, under the node's lock.

    A new container that still has time to start is left alone; one that answers and for which
    `check` raises UnhealthyError is not what was asked for. `now` is an aware time.
    """
    found = find_deployment(host, deployment)
    if found is None:
        return Recovery("nothing")
    if found.replaced is None:
        _drop_forgotten(host, found)
        return Recovery("nothing")
    new = found.serving
    if new is not None and new.is_running and is_answering(new):
        try:
            check(new)
        except UnhealthyError as error:
            return _reverted(host, found, crashes_dir, reason=error.message)
        _half_done(host, found, crashes_dir).commit()
        return Recovery("finished", f"{deployment}: the new container answers; the old one is gone")
    if new is not None and _may_still_start(new, now):
        return Recovery("waiting", f"{deployment}: the new container is still starting")
    reason = "the command that started it was gone before it answered"
    return _reverted(host, found, crashes_dir, reason=reason)


def _drop_forgotten(host: DockerHost, found: Deployment) -> None:
    """Finish what a command that died after its last rename did not come to."""
    if found.serving is not None:
        drop_kept(host, found.name, beyond=max(found.serving.keep_count, 1))


def abandon(host: DockerHost, deployment: str, *, crashes_dir: Path, reason: str) -> Recovery:
    """Give up a new container that still starts: the old one is back, and may be replaced anew.

    `reason` goes into the new container's evidence.
    """
    found = find_deployment(host, deployment)
    if found is None or found.replaced is None:
        return Recovery("nothing")
    return _reverted(host, found, crashes_dir, reason=reason)


def follow(
    host: DockerHost, deployment: str, *, head: str, launch: str, crashes_dir: Path
) -> Recovery:
    """Let another node of a cluster go the way its head has gone.

    What `launch`, that of the head's container, started here stays; what another launch of this
    head started is put away, and what it replaced comes back. Containers of another head, or of
    that machine alone, are not touched.
    """
    found = find_deployment(host, deployment)
    if found is None:
        return Recovery("nothing")
    new = found.serving
    if new is not None and new.nodes[:1] != (head,):
        return Recovery("nothing")
    belongs = new is not None and new.labels.get(labels.LAUNCH, "") == launch
    if found.replaced is None:
        return (
            Recovery("nothing") if new is None or belongs else _orphan_gone(host, new, crashes_dir)
        )
    if belongs:
        _half_done(host, found, crashes_dir).commit()
        return Recovery("finished", f"{deployment}: the new container stays, as on {head}")
    return _reverted(host, found, crashes_dir, reason=f"{head} does not have its part of it")


def _orphan_gone(host: DockerHost, orphan: ContainerFact, crashes_dir: Path) -> Recovery:
    """Put away one that took nobody's place: its node had no such deployment before."""
    reason = "its head does not have its part of it"
    started = Replacement(host, orphan.deployment, crashes_dir, new_id=orphan.container_id)
    started.revert({"cause": {"meaning": reason}})
    return Recovery("reverted", f"{orphan.deployment}: the new container is gone ({reason})")


def _reverted(host: DockerHost, found: Deployment, crashes_dir: Path, *, reason: str) -> Recovery:
    _half_done(host, found, crashes_dir).revert({"cause": {"meaning": reason}})
    text = f"{found.name}: the old container is back; the new one is gone ({reason})"
    return Recovery("reverted", text)


def _half_done(host: DockerHost, found: Deployment, crashes_dir: Path) -> Replacement:
    assert found.replaced is not None  # noqa: S101 - both callers have looked
    return Replacement(
        host,
        found.name,
        crashes_dir,
        old_id=found.replaced.container_id,
        new_id=found.serving.container_id if found.serving else None,
        origin=returning_or_made(found.serving, found.replaced),
        # Nobody knows whether the command that died had told it to stop: it may end any moment.
        is_old_told_to_stop=found.replaced.is_running,
    )


def _may_still_start(fact: ContainerFact, now: datetime) -> bool:
    running_s = uptime_s(fact, now)
    timeout_s = fact.startup_timeout_s
    return running_s is not None and timeout_s is not None and running_s < timeout_s
