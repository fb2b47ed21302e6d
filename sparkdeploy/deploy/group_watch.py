"""Several containers that live and die together: the first death is found, and ends the rest."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from sparkdeploy.errors import NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.node.reports import parse_time
from sparkdeploy.server.health import death

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost

POLL_S = 0.5
LOST_AFTER_S = 5.0
"""How long a node may not answer before its container counts as lost."""
STOP_TIMEOUT_S = 3
ALIVE = frozenset({"created", "running", "paused", "restarting"})


@dataclass(frozen=True, slots=True)
class Member:
    """One node's container; `clock_skew_s` is how far that node's clock is from ours."""

    node: str
    host: DockerHost
    container_id: str
    clock_skew_s: float = 0.0

    def look(self) -> ContainerFact | None:
        """Return what its engine says of it; None when it is gone."""
        return self.host.find_container(self.container_id)


@dataclass(frozen=True, slots=True)
class End:
    """How one member ended, or why nobody can say how it is."""

    member: Member
    fact: ContainerFact | None
    lost: NodeError | None = None

    def ended_at(self) -> datetime | None:
        """Return when, by our clock."""
        moment = parse_time(self.fact.finished_at) if self.fact else None
        return moment - timedelta(seconds=self.member.clock_skew_s) if moment else None

    def error(self) -> SparkdeployError:
        """Return the error that names the node and the root cause."""
        node = self.member.node
        if self.lost is not None:
            message = self.lost.message.removeprefix(f"{node}: ")
            return UnhealthyError(
                f"{node}: lost while it was waited for: {message}", hint=self.lost.hint
            )
        found = death(self.member.host, self.member.container_id, self.fact)
        found.message = f"{node}: {found.message}"
        return found


@dataclass(slots=True)
class GroupWatch:
    """Looks at all members until one ends; a context manager."""

    members: Sequence[Member]
    first: End | None = None
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        for member in self.members:
            thread = threading.Thread(target=self._follow, args=(member,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LOST_AFTER_S)

    def find_first(self) -> End | None:
        """Return the first end, looking once more at every member; None when all live."""
        with self._lock:
            if self.first is None and (ends := self._ends(self.members)):
                self.first = earliest(ends)
                self._over.set()
            return self.first

    def _follow(self, member: Member) -> None:
        answered_s = time.monotonic()
        while not self._over.wait(POLL_S):
            try:
                fact = member.look()
                answered_s = time.monotonic()
            except NodeError as error:
                if time.monotonic() - answered_s > LOST_AFTER_S:
                    self._end(End(member, None, error))
                continue
            if fact is None or fact.state not in ALIVE:
                self._end(End(member, fact))

    def _end(self, noticed: End) -> None:
        """Of all that have ended by now the earliest is the first; the others are stopped."""
        with self._lock:
            if self._over.is_set():
                return
            others = [member for member in self.members if member is not noticed.member]
            self.first = earliest((noticed, *self._ends(others)))
            self._over.set()
        for member in self.members:
            with contextlib.suppress(NodeError):
                member.host.stop(member.container_id, timeout_s=STOP_TIMEOUT_S)

    @staticmethod
    def _ends(members: Sequence[Member]) -> list[End]:
        found: list[End] = []
        for member in members:
            with contextlib.suppress(NodeError):
                fact = member.look()
                if fact is None or fact.state not in ALIVE:
                    found.append(End(member, fact))
        return found


def earliest(ends: Sequence[End]) -> End:
    """Return the end that came first; one without a time only when none has one."""
    timed = [(moment, end) for end in ends if (moment := end.ended_at()) is not None]
    return min(timed, key=lambda item: item[0])[1] if timed else ends[0]
