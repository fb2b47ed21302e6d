"""Putting a container in place of the one with its name, and back when that fails.

Every step leaves a state that the containers' names tell, so that a CLI that dies at any point
can be followed by `recovery.recover`:

    NAME only                       nothing is half done
    NAME-replaced only              the new one does not exist: the old one comes back
    NAME and NAME-replaced          the new one is tried: it stays if it answers
    NAME, which has ended           stopped, or dead: `start` and `up` start or replace it
    NAME-kept-N                     an earlier one, stopped, for `rollback`: the highest N counts

The node's lock is held while containers change, and not while the new one is waited for: `down`
and `rollback` may end a start. Whoever waited then finds its container gone and says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from sparkdeploy import labels
from sparkdeploy.console import console
from sparkdeploy.deploy.deployments import find_deployment, kept_name, replaced_name
from sparkdeploy.deploy.evidence import save_evidence
from sparkdeploy.deploy.lock import defer_signals
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.node.container import ContainerFact, ContainerSpec
from sparkdeploy.plan.container import container_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sparkdeploy.node.host import DockerHost


class TakenAwayError(UnhealthyError):
    """Another command stopped or replaced the container that was waited for."""

    def __init__(self, deployment: str) -> None:
        super().__init__(
            f"{deployment} was stopped or replaced by another command while it was starting",
            hint="`sparkdeploy status` shows what is there now",
        )


class Origin(Enum):
    """Where the container that is tried comes from, and so where it goes when it fails."""

    MADE = "it was made for this start, and is removed"
    KEPT = "it was kept for a rollback, and is kept again"
    ENDED = "it had ended under its own name, and stays there, stopped"


@dataclass(slots=True)
class Replacement:
    """A new container that is being tried; `commit` keeps it, `revert` brings the old one back."""

    host: DockerHost
    deployment: str
    crashes_dir: Path
    old_id: str | None = None
    new_id: str | None = None
    origin: Origin = Origin.MADE
    stopped_id: str | None = None
    """What stood stopped under the name, and is kept from now on as an earlier one."""
    told_to_stop_s: float | None = None
    """When this command told the old one to stop, by the clock that only goes on."""
    is_old_told_to_stop: bool = False
    """From then on the old one may end at any moment, although it still runs."""

    @property
    def container_id(self) -> str:
        if self.new_id is None:
            raise NodeError(f"deployment {self.deployment} has no new container")
        return self.new_id

    def is_in_place(self) -> bool:
        fact = self.host.find_container(container_name(self.deployment))
        return fact is not None and fact.container_id == self.new_id

    def commit(self) -> None:
        """Let the new one stay, and keep its last predecessor for `rollback`."""
        if self.old_id is not None and self.host.find_container(self.old_id) is not None:
            self.host.stop(self.old_id)
            self._keep(self.old_id)
        found = find_deployment(self.host, self.deployment)
        for fact in found.kept[1:] if found is not None else ():
            self.host.remove(fact.container_id)

    def remove_old(self) -> None:
        """Remove what was replaced instead of keeping it."""
        if self.old_id is not None and self.host.find_container(self.old_id) is not None:
            self.host.stop(self.old_id)
            self.host.remove(self.old_id)
        if self.stopped_id is not None and self.host.find_container(self.stopped_id) is not None:
            self.host.remove(self.stopped_id)
        self.old_id = self.stopped_id = None

    def revert(self, details: Mapping[str, Any] | None = None) -> Path | None:
        """Put the new one away and bring the old one back; return the folder of the evidence."""
        folder = self._discard_new(details or {})
        stopped = self.host.find_container(self.stopped_id) if self.stopped_id else None
        if stopped is not None:
            self.host.rename(stopped.container_id, container_name(self.deployment))
        if self.old_id is None:
            return folder
        if self.is_old_told_to_stop:
            self.host.stop(self.old_id)
        old = self.host.find_container(self.old_id)
        if old is None:
            return folder
        # Start first, rename last: the name says `half done` until it is whole again.
        if not old.is_running:
            self.host.start(self.old_id)
        if old.name != container_name(self.deployment):
            self.host.rename(self.old_id, container_name(self.deployment))
        return folder

    def _discard_new(self, details: Mapping[str, Any]) -> Path | None:
        if self.new_id is None or self.host.find_container(self.new_id) is None:
            return None
        folder = self.evidence_of(self.new_id, details)
        if self.origin is Origin.MADE:
            self.host.remove(self.new_id)
            return folder
        self.host.stop(self.new_id)
        if self.origin is Origin.KEPT:
            self._keep(self.new_id)
        return folder

    def set_aside(self) -> None:
        """Take what stands under the name out of the way; it knows afterwards what that was."""
        old = self.host.find_container(container_name(self.deployment))
        if old is None:
            return
        if old.is_running:
            self.old_id = old.container_id
            self.host.rename(old.container_id, replaced_name(self.deployment))
            self.is_old_told_to_stop = True
            self.told_to_stop_s = time.monotonic()
            self.host.stop(old.container_id)
        elif old.is_stopped or old.rank:
            # Nothing of it runs that would have to come back: it is an earlier one from now on.
            # Of a part its head says whether it died: the end of the head ends it, too.
            self._save_end(old)
            self._keep(old.container_id)
            self.stopped_id = old.container_id
        else:
            self._save_end(old)
            self.host.remove(old.container_id)

    def bring(self, part: ContainerSpec | ContainerFact) -> None:
        """Make a container, or bring one that was made before, and start it."""
        if isinstance(part, ContainerSpec):
            self.new_id = self.host.create(part)
        elif part.name == container_name(self.deployment):
            self.origin, self.new_id = Origin.ENDED, part.container_id
            self._save_end(part)
        else:
            self.origin = Origin.KEPT
            self.host.rename(part.container_id, container_name(self.deployment))
            self.new_id = part.container_id
        self.host.start(self.container_id)

    def _save_end(self, fact: ContainerFact) -> None:
        """Save the evidence of one that died, before its end can be seen no more."""
        if fact.exit_code and fact.state == "exited" and not fact.is_stopped:
            self.evidence_of(fact.container_id, {})

    def _keep(self, container_id: str) -> None:
        """Give a stopped container the next number; a clock that jumps cannot mix them up."""
        found = find_deployment(self.host, self.deployment)
        newest = found.kept[0].name if found is not None and found.kept else ""
        number = int(newest.rpartition("-")[2]) if newest else 0
        self.host.rename(container_id, kept_name(self.deployment, number + 1))

    def evidence_of(self, container_id: str, details: Mapping[str, Any]) -> Path | None:
        """Keep what can be kept; a full disk is no reason to leave the old container down."""
        try:
            folder, name = self.crashes_dir, self.deployment
            return save_evidence(self.host, container_id, folder, deployment=name, details=details)
        except OSError as error:
            console.warn(f"the evidence of {self.deployment} is not kept: {error}")
            return None


def begin(
    replacement: Replacement,
    part: ContainerSpec | ContainerFact,
    *,
    before_start: Callable[[], None],
) -> None:
    """Set a running old container aside and start the new one, or one that was made before.

    The old one is renamed before it is stopped, so that its name tells the half-done state from
    a deployment that ended by itself. An old container that died is removed, after its evidence
    is saved; one that was stopped is kept. What has the name itself may be started again: of
    several parts one may still run, and is stopped first. `before_start` is called when nothing of
    the deployment runs and may raise. Raises NodeError when a foreign container has the name.
    Whatever it raises, the replacement knows how far it came, and `revert` undoes that.
    """
    host, deployment = replacement.host, replacement.deployment
    _refuse_anothers(host, deployment, part.labels)
    _refuse_half_done(host, deployment)
    is_there = isinstance(part, ContainerFact) and part.name == container_name(deployment)
    # Not within what follows: until the old one is known to be the old one, it would look new.
    if isinstance(part, ContainerFact) and is_there:
        _end_left_over(host, part.container_id)
    else:
        replacement.set_aside()
    try:
        before_start()
        replacement.bring(part)
    except BaseException:
        with defer_signals():
            # It may have come just before the interruption.
            found = None if is_there else host.find_container(container_name(deployment))
            if found is not None and found.container_id != replacement.old_id:
                replacement.new_id = found.container_id
        raise


def _end_left_over(host: DockerHost, container_id: str) -> None:
    """A rank that still runs cannot join those that start anew."""
    fact = host.find_container(container_id)
    if fact is not None and fact.is_running:
        host.stop(container_id)


def leave(replacement: Replacement) -> None:
    """Set a running container aside with nothing in its place: this node is needed no more."""
    _refuse_half_done(replacement.host, replacement.deployment)
    replacement.set_aside()


def _refuse_half_done(host: DockerHost, deployment: str) -> None:
    for name in (container_name(deployment), replaced_name(deployment)):
        fact = host.find_container(name)
        if fact is not None and not _is_ours(fact, deployment):
            raise NodeError(
                f"a container named {name} exists that sparkdeploy did not make; it stays",
                hint=f"choose another name with --name, or `docker rename {name} ...`",
            )
        if fact is not None and name == replaced_name(deployment):
            raise NodeError(
                f"deployment {deployment} is half replaced",
                hint="`sparkdeploy rollback` or the next `sparkdeploy up` finishes or reverts it",
            )


def _refuse_anothers(host: DockerHost, deployment: str, marks: Mapping[str, str]) -> None:
    """Another machine's part is never replaced, also when it came a moment ago."""
    old = host.find_container(container_name(deployment))
    if old is None or not _is_ours(old, deployment):
        return
    head, rank = marks.get(labels.NODES, "").partition(",")[0], marks.get(labels.RANK, "0")
    owner = old.nodes[0] if old.nodes else "this node itself"
    if (rank == "0") != (old.rank == 0) or (rank != "0" and owner != head):
        raise NodeError(
            f"{deployment} was deployed here by {owner}; it stays",
            hint=f"there: sparkdeploy down {deployment}; or choose another --name",
        )


def _is_ours(fact: ContainerFact, deployment: str) -> bool:
    return fact.labels.get(labels.KIND) == "container" and fact.deployment == deployment
