"""Finishing or reverting what a command that died left half done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkdeploy.deploy.deployments import (
    Inspected,
    deployments_in,
    find_deployment,
    look_again,
    may_still_start,
    nodes_with,
)
from sparkdeploy.deploy.expectation import verify_part
from sparkdeploy.deploy.lock import defer_signals
from sparkdeploy.deploy.nodes import ClusterRecord
from sparkdeploy.deploy.replace import Origin, Replacement
from sparkdeploy.deploy.serving import answers
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.node.node import named
from sparkdeploy.node.reports import parse_time
from sparkdeploy.plan.container import container_name
from sparkdeploy.plan.problems import owner_of
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.settings import Settings


ALONE = "alone"
"""In the place of a launch: the head serves by itself."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found half done, and what became of it."""

    action: Literal["nothing", "verified", "waiting", "finished", "reverted", "returned"]
    """verified: a start not checked before is what was planned; returned: by `rollback`."""
    text: str = ""

    @property
    def has_changed(self) -> bool:
        return self.action in {"finished", "reverted", "returned"}


def is_half_done(nodes: Nodes, deployment: str, settings: Settings) -> bool:
    """Say whether `recover` would find something to finish, to revert or to compare with its plan.

    Of a deployment over several nodes it always may: only the other nodes tell.
    """
    record = ClusterRecord.below(settings.state_dir)
    found = deployments_in(nodes.here.listing).get(deployment)
    if nodes.config is not None or record.nodes(deployment):
        return True
    if found is None or found.is_of_another_head:
        return False
    serving = found.serving
    is_unverified = serving is not None and record.is_unverified(deployment, serving.container_id)
    return found.is_half_replaced or len(found.kept) > 1 or is_unverified


def recover(nodes: Nodes, deployment: str, found: Inspected | None, settings: Settings) -> Recovery:
    """Finish or revert, on every node, what an interrupted command left; the others follow ours.

    Under the node's lock, and not interrupted. `found` is what this node has now. Returns what
    became of this node's part, or of another's when there was nothing to do here. A node that does
    not answer is named, and keeps its note; NodeError where its part would decide.
    """
    record = ClusterRecord.below(settings.state_dir)
    with defer_signals():
        done = recover_here(
            nodes.here.docker,
            found,
            crashes_dir=settings.crashes_dir,
            is_answering=answers,
            check=lambda fact: _verify_parts(nodes, deployment, fact),
        )
        if done.action == "nothing":
            done = _verify_first_start(nodes, found, settings)
        if done.action in {"finished", "reverted", "verified"}:
            record.clear_unverified(deployment)
        if done.text:
            console.warn(done.text)
        if done.action == "waiting":
            return done
        return _let_others_follow(nodes, deployment, found, settings, done)


def end_start(
    nodes: Nodes, deployment: str, found: Inspected | None, settings: Settings, *, reason: str
) -> Recovery:
    """Finish or revert everywhere; what is still starting is given up, `reason` says why."""
    with defer_signals():
        done = recover(nodes, deployment, found, settings)
        if done.action != "waiting":
            return done
        done = abandon(nodes, deployment, settings, reason=reason)
        console.info(done.text)
        return _let_others_follow(nodes, deployment, found, settings, done)


def _verify_parts(nodes: Nodes, deployment: str, head: ContainerFact) -> None:
    """Hold all parts against their plan: a head answers without a rank, and hangs when asked."""
    verify_part(nodes.here, head)
    for name in head.nodes[1:]:
        node = nodes.node(name)
        with named(node):
            fact = node.docker.find_container(container_name(deployment))
        if fact is None or not fact.is_running or fact.launch != head.launch:
            raise UnhealthyError(f"{name}: its part of {deployment} does not run")
        verify_part(node, fact)


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of a deployment has now: the others follow it."""

    name: str
    launch: str
    """That of its container; ALONE where it serves by itself, empty where it serves nothing."""
    launches: frozenset[str]
    """All that it has a container of, kept ones among them."""


def _head_of(name: str, found: Inspected | None) -> Head:
    if found is None:
        return Head(name, "", frozenset())
    launches = frozenset(fact.launch for fact in found.containers if fact.launch)
    if found.serving is None:
        return Head(name, "", launches)
    return Head(name, found.serving.launch or ALONE, launches)


def _let_others_follow(
    nodes: Nodes, deployment: str, found: Inspected | None, settings: Settings, done: Recovery
) -> Recovery:
    """Settle the other nodes by what this one has now, and note who still has something."""
    here = nodes.here
    if done.has_changed:
        # What else changes it waits for the lock.
        here.forget_listing()
        found = look_again(here, deployment)
    fact = found.serving if found is not None else None
    # A machine that is none of several has nobody who follows it.
    if nodes.config is None or (fact is not None and owner_of(fact, here.name) != here.name):
        return done
    record = ClusterRecord.below(settings.state_dir)
    head = _head_of(here.name, found)
    noted = list(fact.nodes) if fact is not None else []
    for name in nodes_with(found, record.nodes(deployment)):
        if name == here.name:
            continue
        if nodes.is_left_out(name):
            noted.append(name)
            continue
        try:
            outcome, has_something = _recover_node(nodes.node(name), head, deployment, settings)
        except NodeError as error:
            noted.append(name)
            console.warn(
                f"{error.message}; what was left half done there remains: run "
                f"`sparkdeploy rollback {deployment}` again when {name} is back"
            )
            continue
        noted += [name] if has_something else []
        if outcome.text:
            console.warn(f"{name}: {outcome.text}")
        if done.action in {"nothing", "verified"}:
            done = outcome
    record.note(deployment, tuple(dict.fromkeys(noted)))
    return done


def _recover_node(
    node: Node, head: Head, deployment: str, settings: Settings
) -> tuple[Recovery, bool]:
    """Return the outcome on another node, and whether it still has a container of this head."""
    with named(node):
        done = follow(node.docker, deployment, head=head, crashes_dir=settings.crashes_dir)
        node.forget_listing()
        left = find_deployment(node.docker, deployment)
    facts = left.containers if left is not None else ()
    return done, any(fact.nodes[:1] == (head.name,) for fact in facts)


def recover_here(
    host: DockerHost,
    found: Inspected | None,
    *,
    crashes_dir: Path,
    is_answering: Callable[[ContainerFact], bool],
    check: Callable[[ContainerFact], None] = lambda _fact: None,
) -> Recovery:
    """Finish or revert what a CLI that died or detached left half done, under the node's lock.

    A new container that still has time to start is left alone; one that answers and for which
    `check` raises UnhealthyError is not what was asked for.
    """
    if found is None or found.is_of_another_head:
        return Recovery("nothing")
    new, deployment = found.serving, found.name
    if found.replaced is None:
        # What a command that died after its last rename did not come to.
        for fact in found.kept[1:] if new is not None else ():
            host.remove(fact)
        return Recovery("nothing")
    half_done = _half_done(host, found, crashes_dir)
    if new is not None and new.is_running and is_answering(new):
        try:
            check(new)
        except UnhealthyError as error:
            return _reverted(half_done, error.message)
        half_done.commit()
        return Recovery("finished", f"{deployment}: the new container answers and stays")
    if new is not None and may_still_start(new):
        return Recovery("waiting", f"{deployment}: the new container is still starting")
    return _reverted(half_done, "the command that started it ended before it answered")


def _verify_first_start(nodes: Nodes, found: Inspected | None, settings: Settings) -> Recovery:
    """Check a first start against its plan, once: the `up` was detached, or died."""
    host, record = nodes.here.docker, ClusterRecord.below(settings.state_dir)
    fact = found.serving if found is not None else None
    deployment = fact.deployment if fact is not None else ""
    if fact is None or not record.is_unverified(deployment, fact.container_id) or not answers(fact):
        return Recovery("nothing")
    try:
        _verify_parts(nodes, deployment, fact)
    except UnhealthyError as error:
        started = Replacement(host, deployment, settings.crashes_dir, new_id=fact.container_id)
        # One that has ended before was started again, and stays, stopped.
        started.origin = Origin.ENDED if parse_time(fact.finished_at) else Origin.MADE
        return _reverted(started, error.message)
    return Recovery("verified")


def abandon(nodes: Nodes, deployment: str, settings: Settings, *, reason: str) -> Recovery:
    """Give up what still starts: the old one is back. `reason` goes into the new one's evidence."""
    host = nodes.here.docker
    found = find_deployment(host, deployment)
    if found is None or found.replaced is None:
        return Recovery("nothing")
    return _reverted(_half_done(host, found, settings.crashes_dir), reason)


def follow(host: DockerHost, deployment: str, *, head: Head, crashes_dir: Path) -> Recovery:
    """Let another node of a deployment go the way its head has gone.

    What the head's launch started here stays; what another launch of this head started is put
    away, and what it replaced comes back. Containers of another head, or of that machine alone,
    are not touched.
    """
    found = find_deployment(host, deployment)
    if found is None or found.current.nodes[:1] != (head.name,):
        return Recovery("nothing")
    new, old = found.serving, found.replaced
    is_of_head = new is not None and new.launch == head.launch
    half_done = _half_done(host, found, crashes_dir)
    if old is not None:
        if is_of_head:
            half_done.commit()
            return Recovery("finished", f"{deployment}: the new container stays, as on {head.name}")
        if new is None and head.launch and old.launch != head.launch:
            # The head goes on with a launch that does not need this node.
            half_done.commit()
            return Recovery("finished", f"{deployment}: {head.name} no longer needs this node")
        return _reverted(half_done, f"{head.name} has no container of the same start")
    for fact in found.kept:
        if fact.launch not in head.launches:
            host.remove(fact)
    if new is None or is_of_head:
        return Recovery("nothing")
    # One that the head keeps is kept here too.
    half_done.origin = Origin.KEPT if new.launch in head.launches else Origin.MADE
    return _reverted(half_done, "its head has no container of the same start")


def _reverted(started: Replacement, reason: str) -> Recovery:
    started.revert({"cause": {"meaning": reason}})
    fate = "it is stopped" if started.origin is Origin.ENDED else "the new container is gone"
    if started.old is not None:
        fate = "the old container is back; the new one is gone"
    return Recovery("reverted", f"{started.deployment}: {fate} ({reason})")


def _half_done(host: DockerHost, found: Inspected, crashes_dir: Path) -> Replacement:
    """Return what a command that died had begun, as far as the containers tell."""
    new, old = found.serving, found.replaced
    # A rollback differs from an upgrade: a container that comes back is older than the other. One
    # of which no time is known was made.
    was_kept = new is not None and old is not None and "" < new.created_at < old.created_at
    replacement = Replacement(
        host,
        found.name,
        crashes_dir,
        old=old,
        new_id=new.container_id if new is not None else None,
        origin=Origin.KEPT if was_kept else Origin.MADE,
        # Nobody knows whether the command that died had stopped it: it may end at any time.
        is_old_stopping=old is not None and old.is_running,
    )
    replacement.knows(found.kept)
    return replacement
