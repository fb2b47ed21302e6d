"""The containers of one `up`, on one node or several: started, waited for, kept or put back.

The containers of a launch are replaced one after the other (see `replace`), and committed together:
all of them stay, or all of them go and what was there before is there again. The head decides:
whatever a command that died left half done on other nodes follows what the head has (`recovery`).
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import Inspected, deployments_in, look_again
from sparkdeploy.deploy.lock import defer_signals, deploy_lock
from sparkdeploy.deploy.nodes import ClusterRecord
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.facts import parse_meminfo, read_or_none
from sparkdeploy.node.node import Node, Nodes, named
from sparkdeploy.plan.memory import promised_bytes, shortage
from sparkdeploy.plan.preflight import in_the_way, owner_of
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sparkdeploy.deploy.replace import Replacement
    from sparkdeploy.deploy.wait import Watch
    from sparkdeploy.estimate.memory import MemoryClaim
    from sparkdeploy.node.container import ContainerSpec, ListedContainer
    from sparkdeploy.server.health import Readiness
    from sparkdeploy.settings import Settings


RETURN_TIMEOUT_S = 20.0
"""A driver may give memory back some seconds after the process that used it has ended."""
POLL_S = 0.5
UNKNOWN_BYTES = 1 << 62
DROP_CACHES = "/proc/sys/vm/drop_caches"
DROP_COMMAND = f"sync && echo 1 | sudo tee {DROP_CACHES}"


@dataclass(frozen=True, slots=True)
class Rank:
    node: Node
    container: ContainerSpec | ListedContainer
    claim: MemoryClaim | None = None


@dataclass(slots=True)
class Launch:
    """One command's change of one deployment; it always knows what it has begun to start."""

    nodes: Nodes
    deployment: str
    settings: Settings
    command: str
    """What was typed, for who waits for the lock: `up v2 --name main`."""
    drop_page_cache: bool = False
    begun: list[Replacement] = field(default_factory=list)
    is_finished: bool = False
    noted_before: tuple[str, ...] = ()
    answered_s: float | None = None

    @property
    def record(self) -> ClusterRecord:
        return ClusterRecord.below(self.settings.state_dir)

    def lock(self) -> AbstractContextManager[None]:
        return deploy_lock(self.settings, self.command, self.deployment)

    def find_here(self) -> Inspected | None:
        return look_again(self.nodes.here, self.deployment)

    @property
    def started(self) -> dict[Node, str]:
        return {it.node: it.new_id for it in self.begun if it.new_id is not None}

    @property
    def head(self) -> Replacement:
        """Return the container with the API: that of this machine."""
        return next(it for it in self.begun if it.node.is_here)

    @property
    def replaces(self) -> bool:
        return any(it.old is not None for it in self.begun)

    @property
    def downtime_s(self) -> float | None:
        """Return how long nobody was answered; None before an answer, and where nothing ran."""
        ends = [it.old_stop_s for it in self.begun if it.old_stop_s is not None]
        return self.answered_s - min(ends) if ends and self.answered_s is not None else None

    def start(self, ranks: Sequence[Rank]) -> None:
        """Put new containers, or kept ones, in place, in this order; if one cannot be, none is."""
        _refuse_foreign(ranks, self.deployment)
        names = [rank.node.name for rank in sorted(ranks, key=lambda rank: not rank.node.is_here)]
        self.noted_before = self.record.nodes(self.deployment)
        leaving = self._leaving(names)
        # Before a container is made: whoever is killed has noted where one may be.
        if len(names) > 1:
            self.record.note(self.deployment, tuple(dict.fromkeys((*self.noted_before, *names))))
        for node in leaving:
            self._begin(node, None)
        for rank in ranks:
            self._begin(rank.node, rank)

    def _leaving(self, needed: Container[str]) -> list[Node]:
        """Return the nodes that run a rank of a deployment of this head, and are needed no more."""
        leaving = []
        for node in self.nodes.others:
            if node.name in needed:
                continue
            with _warn_on_failure(node, "its container of the old deployment remains there"):
                found = deployments_in(node.listing).get(self.deployment)
                fact = found.serving if found is not None else None
                if fact is not None and fact.nodes[:1] == (self.nodes.here.name,):
                    leaving.append(node)
        return leaving

    def _begin(self, node: Node, rank: Rank | None) -> None:
        from sparkdeploy.deploy.replace import Replacement  # noqa: PLC0415

        replacement = Replacement(node, self.deployment, self.settings.crashes_dir)
        # Before anything is done: whatever interrupts from here on finds it.
        self.begun.append(replacement)
        try:
            with named(node):
                found = deployments_in(node.listing).get(self.deployment)
                replacement.set_aside(found, rank.container if rank is not None else None)
                if rank is None:
                    return
                require_memory(
                    node, self.deployment, rank.claim, drop_page_cache=self.drop_page_cache
                )
                replacement.bring(rank.container)
            if node.is_here:
                self.record.mark_unverified(self.deployment, replacement.container_id)
        except BaseException:
            with defer_signals():
                self.revert()
            raise

    def wait_and_commit(self, watch: Watch) -> Readiness:
        """Wait without the lock; then keep the containers, or put the old ones back with evidence.

        Interrupted, new ones without old ones go on. TakenAwayError: another command ended them.
        """
        try:
            readiness = watch.wait()
            self.answered_s = time.monotonic()
        except SparkdeployError as error:
            with defer_signals():
                self._fail(error, watch)
            raise
        except BaseException:
            self.undo(watch)
            raise
        with defer_signals(), self.lock():
            self._require_in_place()
            self.commit()
        return readiness

    def _fail(self, error: SparkdeployError, watch: Watch) -> None:
        """Put the old containers back, and add what became of them to the error's message."""
        from sparkdeploy.server.health import ContainerDiedError  # noqa: PLC0415

        cause = asdict(error.cause) if isinstance(error, ContainerDiedError) else None
        report = {**watch.details(), "cause": cause or {"meaning": error.message}}
        with contextlib.ExitStack() as locked:
            try:
                locked.enter_context(self.lock())
            except NodeError as busy:
                # Why it died is what the user has to know; the next command puts the old one back.
                error.message += f"; what was there before is not back yet: {busy.message}"
                return
            self._require_in_place(error)
            folders = self.revert(report)
        fate = "; the previous deployment is starting again" if self.replaces else ""
        error.message += fate + "".join(f"; evidence: {folder}" for folder in folders)

    def undo(self, watch: Watch | None = None) -> None:
        """Bring the old ones back after an interruption; new ones without old ones go on."""
        if self.is_finished or not self.replaces:
            return
        with defer_signals(), self.lock():
            if self._is_in_place():
                seen = watch.details() if watch is not None else {}
                self.revert({"cause": {"meaning": "it was interrupted"}, **seen})

    def commit(self) -> None:
        """Let the new containers stay, the head's first: from then on the others follow it."""
        self.is_finished = True
        begun_on = {it.node.name for it in self.begun}
        noted = [name for name in self.noted_before if name not in begun_on]
        is_old_whole = self._is_old_whole()
        for replacement in self._by_rank():
            with _warn_on_failure(replacement.node, "what it replaced may remain there"):
                replacement.commit(keeps_old=is_old_whole)
                if replacement.new_id is None and not replacement.kept:
                    continue
            noted.append(replacement.node.name)
        here = {it.node.name for it in self.begun if it.node.is_here}
        self.record.note(self.deployment, () if set(noted) <= here else tuple(noted))
        self.record.clear_unverified(self.deployment)

    def revert(self, details: Mapping[str, Any] | None = None) -> list[Path]:
        """Put new containers away with evidence, bring the old ones back; return its folders."""
        self.is_finished = True
        folders: list[Path | None] = []
        left: list[str] = []
        # The head first: from then on whoever goes on after a kill lets the others follow it.
        for replacement in self._by_rank():
            try:
                with named(replacement.node):
                    folders.append(replacement.revert(details))
            except NodeError as error:
                left.append(replacement.node.name)
                console.warn(f"{error.message}; what was started there may remain")
        self.record.note(self.deployment, tuple(dict.fromkeys((*self.noted_before, *left))))
        self.record.clear_unverified(self.deployment)
        return [folder for folder in folders if folder is not None]

    def _by_rank(self) -> list[Replacement]:
        return sorted(self.begun, key=lambda it: not it.node.is_here)

    def _is_old_whole(self) -> bool:
        """Say whether a rollback could bring back what was replaced: it takes all of its ranks."""
        old = self.head.old
        set_aside = {it.node.name for it in self.begun if it.old is not None}
        return old is None or set_aside.issuperset(old.nodes)

    def _is_in_place(self) -> bool:
        return all(it.is_in_place() for it in self.begun if it.node.is_here)

    def _require_in_place(self, failure: SparkdeployError | None = None) -> None:
        """Raise TakenAwayError when another command has replaced, removed or stopped it."""
        is_wanted = self._is_in_place()
        if is_wanted and failure is not None:
            new_id = self.head.container_id
            fact = self.head.host.find_container(new_id)
            # `stop` verifies what it stops, so that it stays: nothing of it has failed.
            is_stopped = fact is not None and fact.is_stopped
            is_wanted = not is_stopped or self.record.is_unverified(self.deployment, new_id)
        if not is_wanted:
            from sparkdeploy.deploy.replace import TakenAwayError  # noqa: PLC0415

            self.is_finished = True
            raise TakenAwayError(self.deployment) from failure


def _refuse_foreign(ranks: Sequence[Rank], deployment: str) -> None:
    """Judge once more what the plan has judged: another head may have come to a node since."""
    here = {rank.node.name for rank in ranks if rank.node.is_here}
    for rank in ranks:
        # config.yaml may have called this machine otherwise when a kept container was made.
        heads = here | {rank.container.labels.get(labels.NODES, "").partition(",")[0]}
        node, of_several = rank.node.name, len(ranks) > 1
        own = [fact for fact in rank.node.listing if fact.is_own]
        for fact in in_the_way(own, node, deployment, heads, of_several=of_several):
            owner = owner_of(fact, node)
            raise NodeError(
                f"{node}: in use: {owner}'s deployment {fact.deployment} is there",
                hint=f"on {owner}: sparkdeploy down {fact.deployment}; or choose another --name",
            )


@contextlib.contextmanager
def _warn_on_failure(node: Node, remains: str) -> Iterator[None]:
    """The head has decided: what cannot be done on another node now is done by a later command."""
    try:
        with named(node):
            yield
    except NodeError as error:
        if node.is_here:
            raise
        console.warn(f"{error.message}; {remains}")


def require_memory(
    node: Node, deployment: str, claim: MemoryClaim | None, *, drop_page_cache: bool
) -> None:
    """Compare a claim with the memory that is free now; NodeError when it does not come back.

    What others were planned to take counts as taken. A page cache that CUDA does not count as free
    is dropped if that was asked for: nobody is asked under the node's lock.
    """
    if claim is None:
        return
    prefix = "" if node.is_here else f"{node.name}: "
    others_bytes = promised_bytes(filter(lambda it: it.is_own, node.listing), {deployment})
    deadline_s = time.monotonic() + RETURN_TIMEOUT_S
    while True:
        meminfo = _meminfo(node)
        unpromised = meminfo.get("MemTotal", UNKNOWN_BYTES) - others_bytes
        available = min(meminfo.get("MemAvailable", unpromised), unpromised)
        if available >= claim.total_bytes:
            break
        # What is promised to others does not come back: no wait can help.
        if time.monotonic() >= deadline_s or unpromised < claim.total_bytes:
            problem = shortage(claim, available)
            raise NodeError(prefix + problem.seen, hint=problem.fix)
        time.sleep(POLL_S)
    if not claim.page_cache_counts:
        _clear_page_cache(claim.needed_bytes, node, prefix, drop=drop_page_cache)


def _meminfo(node: Node) -> Mapping[str, int]:
    return parse_meminfo(read_or_none(node, "/proc/meminfo") or "")


def _clear_page_cache(needed_bytes: int, node: Node, prefix: str, *, drop: bool) -> None:
    missing_bytes = needed_bytes - _meminfo(node).get("MemFree", needed_bytes)
    if missing_bytes <= 0:
        return
    warning = (
        f"{prefix}the page cache holds {format_gib(missing_bytes)} that CUDA will not count as free"
    )
    if not drop:
        console.warn(f"{warning}; if the start fails: {DROP_COMMAND}, or add --drop-page-cache")
        return
    done = node.script(f"echo 1 > {DROP_CACHES}")
    if done.exit_code != 0:
        why = done.stderr.strip().rpartition(": ")[2] or "no reason was given"
        console.warn(f"{warning}, and it cannot be dropped ({why}): {DROP_COMMAND}")
