"""Finishing or reverting what a command that died left half done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkdeploy.deploy.deployments import (
    Inspected,
    deployments_in,
    find_deployment,
    may_still_start,
    nodes_with,
)
from sparkdeploy.deploy.lock import defer_signals
from sparkdeploy.deploy.serving import answers
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.node.node import Node, Nodes, named
from sparkdeploy.node.reports import parse_time
from sparkdeploy.plan.container import container_name
from sparkdeploy.plan.preflight import owner_of
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.deploy.launch import Launch
    from sparkdeploy.deploy.replace import Replacement
    from sparkdeploy.node.container import ContainerFact

ALONE = "alone"
"""In the place of a launch: the head serves by itself."""


@dataclass(frozen=True, slots=True)
class Recovery:
    action: Literal["nothing", "verified", "waiting", "finished", "reverted", "returned"] = (
        "nothing"
    )
    """verified: a start not checked before is what was planned; returned: by `rollback`."""
    text: str = ""

    @property
    def has_changed(self) -> bool:
        return self.action in {"finished", "reverted", "returned"}


def is_half_done(launch: Launch) -> bool:
    """Say whether `recover` would have anything to do; over several nodes it always may."""
    nodes, name, record = launch.nodes, launch.deployment, launch.record
    found = deployments_in(nodes.here.listing).get(name)
    if nodes.config is not None or record.nodes(name):
        return True
    if found is None or found.is_of_another_head:
        return False
    serving = found.serving
    is_unverified = serving is not None and record.is_unverified(name, serving.container_id)
    return found.is_half_replaced or len(found.kept) > 1 or is_unverified


def recover(launch: Launch, found: Inspected | None) -> Recovery:
    """Finish or revert, on every node, what an interrupted command left; the others follow ours.

    Under the node's lock. Returns what became of this node's rank, or else of another's.
    """
    with defer_signals():
        done = _recover_here(launch, found)
        if done.action == "nothing":
            done = _verify_first_start(launch, found)
        if done.action in {"finished", "reverted", "verified"}:
            launch.record.clear_unverified(launch.deployment)
        if done.text:
            console.warn(done.text)
        if done.action == "waiting":
            return done
        return _let_others_follow(launch, found, done)


def end_start(launch: Launch, found: Inspected | None, *, reason: str) -> Recovery:
    """Finish or revert everywhere; what is still starting is given up, `reason` says why."""
    with defer_signals():
        done = recover(launch, found)
        if done.action != "waiting":
            return done
        done = abandon(launch, reason=reason)
        console.info(done.text)
        return done


def abandon(launch: Launch, *, reason: str) -> Recovery:
    """Give up what still starts, on every node. `reason` goes into the new one's evidence."""
    found = find_deployment(launch.nodes.here.docker, launch.deployment)
    if found is None or found.replaced is None:
        return Recovery()
    started = _half_done(launch.nodes.here, found, launch.settings.crashes_dir)
    return _let_others_follow(launch, found, _reverted(started, reason))


def _verify_ranks(nodes: Nodes, head: ContainerFact) -> None:
    """Check all ranks against their plan: a head answers without one, and hangs when asked."""
    from sparkdeploy.deploy.expectation import verify_rank  # noqa: PLC0415 - seldom needed

    verify_rank(nodes.here, head)
    for name in head.nodes[1:]:
        node = nodes.node(name)
        with named(node):
            fact = node.docker.find_container(container_name(head.deployment))
        if fact is None or not fact.is_running or fact.launch != head.launch:
            raise UnhealthyError(f"{name}: its rank of {head.deployment} does not run")
        verify_rank(node, fact)


def _let_others_follow(launch: Launch, found: Inspected | None, done: Recovery) -> Recovery:
    """Bring the other nodes to what this one has now, and note who still has something."""
    nodes, name = launch.nodes, launch.deployment
    if done.has_changed:
        # What else changes it waits for the lock.
        nodes.here.forget_listing()
        found = launch.find_here()
    head = found.serving if found is not None else None
    # A machine that is none of several has nobody who follows it.
    if nodes.config is None or (
        head is not None and owner_of(head, nodes.here.name) != nodes.here.name
    ):
        return done
    noted = list(head.nodes) if head is not None else []
    for other in nodes_with(found, launch.record.nodes(name)):
        if other == nodes.here.name:
            continue
        if nodes.is_left_out(other):
            noted.append(other)
            continue
        try:
            outcome, has_something = _recover_node(launch, nodes.node(other), found)
        except NodeError as error:
            noted.append(other)
            console.warn(
                f"{error.message}; what was left half done there remains: run "
                f"`sparkdeploy rollback {name}` again when {other} is back"
            )
            continue
        noted += [other] if has_something else []
        if outcome.text:
            console.warn(f"{other}: {outcome.text}")
        if done.action in {"nothing", "verified"}:
            done = outcome
    launch.record.note(name, tuple(dict.fromkeys(noted)))
    return done


def _recover_node(launch: Launch, node: Node, of_head: Inspected | None) -> tuple[Recovery, bool]:
    """Return the outcome on another node, and whether it still has a container of this head."""
    name, here = launch.deployment, launch.nodes.here.name
    with named(node):
        there = find_deployment(node.docker, name)
        done = Recovery()
        # Containers of another head, or of that machine alone, are not touched.
        if there is not None and there.current.nodes[:1] == (here,):
            done = _follow(node, there, of_head, here, launch.settings.crashes_dir)
        node.forget_listing()
        left = find_deployment(node.docker, name)
    facts = left.containers if left is not None else ()
    return done, any(fact.nodes[:1] == (here,) for fact in facts)


def _follow(
    node: Node, there: Inspected, of_head: Inspected | None, head: str, crashes_dir: Path
) -> Recovery:
    """Let another node go its head's way: what another launch started goes, the old one is back."""
    serving = of_head.serving if of_head is not None else None
    launch = (serving.launch or ALONE) if serving is not None else ""
    known = of_head.containers if of_head is not None else ()
    launches = {fact.launch for fact in known if fact.launch}
    new, old, name = there.serving, there.replaced, there.name
    is_of_head = new is not None and new.launch == launch
    half_done = _half_done(node, there, crashes_dir)
    if old is not None:
        if is_of_head:
            half_done.commit()
            return Recovery("finished", f"{name}: the new container stays, as on {head}")
        if new is None and launch and old.launch != launch:
            # The head goes on with a launch that does not need this node.
            half_done.commit()
            return Recovery("finished", f"{name}: {head} no longer needs this node")
        return _reverted(half_done, f"{head} has no container of the same start")
    for fact in there.kept:
        if fact.launch not in launches:
            node.docker.remove(fact)
    if new is None or is_of_head:
        return Recovery()
    # One that the head keeps is kept here too.
    half_done.origin = "kept" if new.launch in launches else "made"
    return _reverted(half_done, "its head has no container of the same start")


def _recover_here(launch: Launch, found: Inspected | None) -> Recovery:
    """Finish or revert what a CLI left half done here; what may still start is left alone."""
    if found is None or found.is_of_another_head:
        return Recovery()
    new, name = found.serving, found.name
    if found.replaced is None:
        # What a command that died after its last rename did not come to.
        for fact in found.kept[1:] if new is not None else ():
            launch.nodes.here.docker.remove(fact)
        return Recovery()
    half_done = _half_done(launch.nodes.here, found, launch.settings.crashes_dir)
    if new is not None and new.is_running and answers(new):
        try:
            _verify_ranks(launch.nodes, new)
        except UnhealthyError as error:
            return _reverted(half_done, error.message)
        half_done.commit()
        return Recovery("finished", f"{name}: the new container answers and stays")
    if new is not None and may_still_start(new):
        return Recovery("waiting", f"{name}: the new container is still starting")
    return _reverted(half_done, "the command that started it ended before it answered")


def _verify_first_start(launch: Launch, found: Inspected | None) -> Recovery:
    """Check a first start against its plan, once: the `up` was detached, or died."""
    fact = found.serving if found is not None else None
    name = launch.deployment
    if fact is None or not launch.record.is_unverified(name, fact.container_id):
        return Recovery()
    if not answers(fact):
        return Recovery()
    try:
        _verify_ranks(launch.nodes, fact)
    except UnhealthyError as error:
        from sparkdeploy.deploy.replace import Replacement  # noqa: PLC0415 - as above

        started = Replacement(
            launch.nodes.here, name, launch.settings.crashes_dir, new_id=fact.container_id
        )
        # One that has ended before was started again, and stays, stopped.
        started.origin = "ended" if parse_time(fact.finished_at) else "made"
        return _reverted(started, error.message)
    return Recovery("verified")


def _reverted(started: Replacement, reason: str) -> Recovery:
    started.revert({"cause": {"meaning": reason}})
    fate = "it is stopped" if started.origin == "ended" else "the new container is gone"
    if started.old is not None:
        fate = "the old container is back; the new one is gone"
    return Recovery("reverted", f"{started.deployment}: {fate} ({reason})")


def _half_done(node: Node, found: Inspected, crashes_dir: Path) -> Replacement:
    """Return what a command that died had begun, as far as the containers tell."""
    from sparkdeploy.deploy.replace import Replacement  # noqa: PLC0415 - as above

    new, old = found.serving, found.replaced
    # A rollback differs from an upgrade: a container that comes back is older than the other. One
    # of which no time is known was made.
    was_kept = new is not None and old is not None and "" < new.created_at < old.created_at
    replacement = Replacement(
        node,
        found.name,
        crashes_dir,
        old=old,
        new_id=new.container_id if new is not None else None,
        origin="kept" if was_kept else "made",
        # Nobody knows whether the command that died had stopped it: it may end at any time.
        is_old_stopping=old is not None and old.is_running,
    )
    replacement.note_kept(found.kept)
    return replacement
