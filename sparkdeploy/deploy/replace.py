"""Putting a container in place of the one with its name, and back when that fails.

Every step leaves a state that the containers' names tell, so that a CLI that dies at any point
can be followed by `recovery.recover`:

    NAME only                       nothing is half done
    NAME-replaced only              the new one does not exist: the old one comes back
    NAME and NAME-replaced          the new one is tried: it stays if it answers
    NAME, which has ended           stopped, or dead: `start` and `up` start or replace it
    NAME-kept-N                     an earlier one, stopped, for `rollback`: the highest N counts

The node's lock is kept while containers change, and not while the new one is waited for: `down`
and `rollback` may end a start. Whoever waited then finds its container gone and says so.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkdeploy.deploy.deployments import (
    Listed,
    find_deployment,
    kept_name,
    kept_number,
    replaced_name,
)
from sparkdeploy.deploy.evidence import save_evidence
from sparkdeploy.deploy.lock import defer_signals
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.node.container import ContainerFact, ContainerSpec, ListedContainer
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import Node
from sparkdeploy.plan.container import container_name
from sparkdeploy.terminal.console import console


class TakenAwayError(UnhealthyError):
    def __init__(self, deployment: str) -> None:
        super().__init__(
            f"{deployment} was stopped or replaced by another command while it was starting",
            hint="`sparkdeploy status` shows what is there now",
        )


@dataclass(slots=True)
class Replacement:
    """A new container that is being tried; `commit` keeps it, `revert` brings the old one back."""

    node: Node
    deployment: str
    crashes_dir: Path
    old: ListedContainer | None = None
    """What ran under the name."""
    new_id: str | None = None
    origin: Literal["made", "kept", "ended"] = "made"
    """Of the new one, when it fails: a made one is removed, a kept one is kept again, one that had
    ended under its own name stays there, stopped."""
    stopped_id: str | None = None
    """What stood stopped under the name, and is kept from now on as an earlier one."""
    old_stop_s: float | None = None
    """When this command stopped the old one, by the monotonic clock."""
    is_old_stopping: bool = False
    """From then on the old one may end at any time, although it still runs."""
    kept: dict[int, str] = field(default_factory=dict)

    @property
    def host(self) -> DockerHost:
        return self.node.docker

    @property
    def name(self) -> str:
        return container_name(self.deployment)

    @property
    def old_id(self) -> str | None:
        return self.old.container_id if self.old is not None else None

    @property
    def container_id(self) -> str:
        if self.new_id is None:
            raise NodeError(f"deployment {self.deployment} has no new container")
        return self.new_id

    def note_kept(self, kept: Iterable[ListedContainer]) -> None:
        self.kept = {kept_number(item.name): item.container_id for item in kept}

    def is_in_place(self) -> bool:
        fact = self.host.find_container(self.name)
        return fact is not None and fact.container_id == self.new_id

    def commit(self, *, keeps_old: bool = True) -> None:
        """Let the new one stay; keep its last predecessor for `rollback`, or remove it."""
        old = self._find(self.old_id)
        if old is not None:
            if old.is_running:
                self.host.stop(old.container_id)
            if keeps_old:
                self._keep(old.container_id)
            else:
                self.host.remove(old)
        if self.stopped_id is not None and not keeps_old:
            self.host.remove(self.stopped_id)
            self.kept = {number: it for number, it in self.kept.items() if it != self.stopped_id}
        for number in sorted(self.kept)[:-1]:
            self.host.remove(self.kept.pop(number))

    def revert(self, details: Mapping[str, Any] | None = None) -> Path | None:
        """Put the new one away and bring the old one back; return the folder of the evidence."""
        folder = self._discard_new(details or {})
        stopped = self._find(self.stopped_id)
        if stopped is not None:
            self.host.rename(stopped.container_id, self.name)
        if self.old_id is None:
            return folder
        if self.is_old_stopping:
            self.host.stop(self.old_id)
        old = self._find(self.old_id)
        if old is None:
            return folder
        # Start first, rename last: the name says `half done` until it is whole again.
        if not old.is_running:
            self.host.start(old.container_id)
        if old.name != self.name:
            self.host.rename(old.container_id, self.name)
        return folder

    def _find(self, container_id: str | None) -> ContainerFact | None:
        return self.host.find_container(container_id) if container_id is not None else None

    def _discard_new(self, details: Mapping[str, Any]) -> Path | None:
        if self.new_id is None or self._find(self.new_id) is None:
            return None
        folder = self._save_evidence(self.new_id, details)
        if self.origin == "made":
            self.host.remove(self.new_id)
            return folder
        self.host.stop(self.new_id)
        if self.origin == "kept":
            self._keep(self.new_id)
        return folder

    def set_aside(
        self, found: Listed | None, container: ContainerSpec | ListedContainer | None = None
    ) -> None:
        """Take what stands under the name out of the way of `container`; without one for good.

        The old one is renamed before it is stopped, so that its name tells the half-done state. One
        that died is removed, after its evidence is saved; one that was stopped is kept.
        """
        current = found.serving if found is not None else None
        self.note_kept(found.kept if found is not None else ())
        if found is not None and found.is_half_replaced:
            raise NodeError(
                f"deployment {found.name} is half replaced",
                hint="`sparkdeploy rollback` or the next `sparkdeploy up` finishes or reverts it",
            )
        if current is None:
            if container is not None and self.host.find_container(self.name) is not None:
                raise NodeError(
                    f"a container named {self.name} exists that sparkdeploy did not make; it stays",
                    hint=f"choose another name with --name, or `docker rename {self.name} ...`",
                )
        elif isinstance(container, ListedContainer) and container.name == self.name:
            if current.is_running:
                # A rank that still runs cannot join those that start anew.
                self.host.stop(current.container_id)
        elif current.is_running:
            self.old = current
            self.host.rename(current.container_id, replaced_name(self.deployment))
            self.is_old_stopping = True
            self.old_stop_s = time.monotonic()
            self.host.stop(current.container_id)
        elif (ended := self._find(current.container_id)) is not None:
            self._put_away(ended)

    def _put_away(self, ended: ContainerFact) -> None:
        self._save_end(ended)
        if ended.is_stopped or ended.rank:
            # Nothing of it runs that would have to come back: it is an earlier one from now on.
            # Of a worker's its head says whether it died: the end of the head ends it, too.
            self._keep(ended.container_id)
            self.stopped_id = ended.container_id
        else:
            self.host.remove(ended)

    def bring(self, container: ContainerSpec | ListedContainer) -> None:
        """Make a container, or take one made before, and start it; `revert` undoes any part."""
        if isinstance(container, ContainerFact) and container.name == self.name:
            self._save_end(container)
        try:
            if isinstance(container, ContainerSpec):
                self.new_id = self.host.create(container)
            elif container.name == self.name:
                self.origin, self.new_id = "ended", container.container_id
            else:
                self.origin = "kept"
                self.host.rename(container.container_id, self.name)
                self.kept.pop(kept_number(container.name), None)
                self.new_id = container.container_id
            self.host.start(self.container_id)
        except BaseException:
            with defer_signals():
                # It may have come just before the interruption.
                new = self.host.find_container(self.name) if self.new_id is None else None
                if new is not None and new.container_id != self.old_id:
                    self.new_id = new.container_id
            raise

    def _save_end(self, fact: ContainerFact) -> None:
        """Save the evidence of one that died, before its end can be seen no more."""
        if fact.exit_code and fact.state == "exited" and not fact.is_stopped:
            self._save_evidence(fact.container_id, {})

    def _keep(self, container_id: str) -> None:
        """Give a stopped container the next number; a clock that jumps cannot mix them up."""
        try:
            self._rename_kept(container_id)
        except NodeError:
            # Another command may have kept one since they were listed.
            found = find_deployment(self.host, self.deployment)
            self.note_kept(found.kept if found is not None else ())
            self._rename_kept(container_id)

    def _rename_kept(self, container_id: str) -> None:
        number = max(self.kept, default=0) + 1
        self.host.rename(container_id, kept_name(self.deployment, number))
        self.kept[number] = container_id

    def _save_evidence(self, container_id: str, details: Mapping[str, Any]) -> Path | None:
        """Keep what can be kept; a full disk is no reason to leave the old container down."""
        try:
            return save_evidence(
                self.host,
                container_id,
                self.crashes_dir,
                deployment=self.deployment,
                details=details,
            )
        except OSError as error:
            console.warn(f"the evidence of {self.deployment} is not kept: {error}")
            return None
