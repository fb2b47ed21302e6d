"""`status` and `logs`: what runs, and what it writes."""

from __future__ import annotations

import codecs
import io
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.commands.boot import failed_starts, with_failed_starts
from sparkdeploy.deploy import deployments
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import MemberRow, nodes_with
from sparkdeploy.deploy.removal import warn_of_foreign_containers
from sparkdeploy.deploy.serving import answers, counted_by
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.node.cluster import open_nodes, this_node
from sparkdeploy.node.lock import attendant_of
from sparkdeploy.node.node import at_once, named
from sparkdeploy.server.nccl import without_chatter
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.deploy.deployments import StatusRow
    from sparkdeploy.node.node import Nodes
    from sparkdeploy.settings import Settings

BEING_REPLACED = "being replaced"
CHATTER_LINES = 2000
"""More than NCCL writes at a start, so that the last lines asked for are found behind it."""
NO_CONTAINER = "no container"
NOT_CONFIGURED = "not in config.yaml"


def current_rows() -> tuple[StatusRow, ...]:
    settings = load_settings()
    record = ClusterRecord.below(settings.state_dir)
    with this_node(settings) as nodes_here:
        here, host = nodes_here.here, nodes_here.here.docker
        listed = deployments.deployments_in(here.listing).values()
        inspected = (deployments.inspect_deployment(host, it) for it in listed)
        by_name = {it.name: it for it in inspected if it is not None}
        rows = deployments.status_rows(host, by_name.values(), lambda it: answers(it.current))
        rows = tuple(_with_counters(row, by_name[row.name], settings) for row in rows)
        warn_of_foreign_containers(here.listing)
    names = dict.fromkeys((*by_name, *record.deployments()))
    nodes = {name: nodes_with(by_name.get(name), record.nodes(name)) for name in names}
    # Another machine that heads a deployment knows its other nodes.
    headed = {row.name for row in rows if row.head}
    asked = {name: found for name, found in nodes.items() if found and name not in headed}
    members = _members(asked, rows, settings)
    left = (_left_over(name, members.get(name, ())) for name in asked if name not in by_name)
    whole = (_with_members(row, members.get(row.name, ())) for row in rows)
    watched = (_watched(row, settings) for row in whole)
    seen = (*watched, *(row for row in left if row.members))
    return with_failed_starts(seen, failed_starts(), settings.crashes_dir)


def rows_of(names: Collection[str], rows: Sequence[StatusRow]) -> tuple[StatusRow, ...]:
    """Return the rows of the named deployments; NodeError for a name that none of them has."""
    known = [row.name for row in rows]
    for name in names:
        if name not in known:
            raise deployments.no_deployment(name, known)
    return tuple(row for row in rows if row.name in names)


def _with_counters(row: StatusRow, found: deployments.Inspected, settings: Settings) -> StatusRow:
    """Say what a server that looks healthy counts of its requests and of its drafter."""
    if row.state != deployments.HEALTHY:
        return row
    counted = counted_by(found.current, settings)
    if (finished := counted.finished) is None:
        return replace(row, drafting=counted.drafting)
    return replace(
        row,
        drafting=counted.drafting,
        requests=finished.requests,
        requests_a_minute=finished.a_minute(time.time()),
    )


def _members(
    nodes: Mapping[str, tuple[str, ...]], rows: tuple[StatusRow, ...], settings: Settings
) -> dict[str, tuple[MemberRow, ...]]:
    """Return what the other nodes of each deployment say; without any, no node is asked."""
    asked = frozenset(name for names in nodes.values() for name in names)
    heads = {row.name: row for row in rows}
    if not asked:
        return {}
    try:
        with open_nodes(settings, asked) as opened:
            return {name: _ask(opened, name, found, heads) for name, found in nodes.items()}
    except (NodeError, RecipeError) as error:
        # Such as nodes that have gone from config.yaml: other deployments are shown all the same.
        return {name: (MemberRow("cluster", error.message),) for name in nodes}


def _ask(
    opened: Nodes, name: str, nodes: tuple[str, ...], heads: Mapping[str, StatusRow]
) -> tuple[MemberRow, ...]:
    head = heads.get(name)
    needed = head.nodes if head is not None else ()
    # The head is this machine also where config.yaml calls it otherwise by now.
    own = {opened.here.name, *needed[:1]}
    others = [node for node in nodes if node not in own]
    states = at_once(partial(_state_on, opened, name, head), others)
    return tuple(
        MemberRow(other, state)
        for other, state in zip(others, states, strict=True)
        if state != NO_CONTAINER or other in needed
    )


def _state_on(nodes: Nodes, deployment: str, head: StatusRow | None, name: str) -> str:
    if not _is_configured(nodes, name):
        return NOT_CONFIGURED
    try:
        node = nodes.node(name)
        with named(node):
            found = deployments.find_deployment(node.docker, deployment)
    except NodeError as error:
        return f"does not answer ({error.message})"
    fact = found.serving if found is not None else None
    if found is not None and found.is_half_replaced:
        return deployments.HALF_REPLACED
    if fact is None or fact.nodes[:1] != (nodes.here.name,):
        return NO_CONTAINER
    if not fact.is_running:
        # One may die of its head's end before it is told to stop.
        with_head = head is not None and head.stopped_at and head.launch == fact.launch
        is_stopped = fact.is_stopped or with_head
        return deployments.STOPPED if is_stopped else f"exited ({fact.exit_code})"
    is_of_this_start = head is None or fact.launch == head.launch
    return deployments.RUNNING if is_of_this_start else deployments.OTHER_LAUNCH


def _is_configured(nodes: Nodes, name: str) -> bool:
    return nodes.config is not None and name in nodes.config.names


def _with_members(row: StatusRow, members: tuple[MemberRow, ...]) -> StatusRow:
    """Say what a head alone cannot know: it may look healthy and will hang without a worker."""
    half_done = {deployments.HALF_REPLACED, deployments.OTHER_LAUNCH}
    if any(member.state in half_done for member in members) and not row.half_done:
        told = "the nodes have parts of different starts"
        return replace(row, members=members, state=deployments.HALF_REPLACED, half_done=told)
    # What an earlier one has left on other nodes is no part of what serves now.
    asked = (*row.nodes, "cluster") if row.nodes else ()
    needed = [member for member in members if member.node in asked]
    is_stopped = row.state == deployments.STOPPED
    wanted = deployments.STOPPED if is_stopped else deployments.RUNNING
    if row.half_done or all(member.state == wanted for member in needed):
        return replace(row, members=members)
    state = deployments.HALF_STOPPED if is_stopped else deployments.BROKEN
    return replace(row, members=members, state=state)


def _left_over(name: str, members: tuple[MemberRow, ...]) -> StatusRow:
    """Return the row of what `down` could not reach: nothing is here, something may be there."""
    is_gone = all(member.state == NOT_CONFIGURED for member in members)
    does = "forgets it" if is_gone else "removes what is left when the node is back"
    return deployments.StatusRow(
        name=name,
        recipe="",
        state="left over",
        half_done=f"`sparkdeploy down {name}` {does}",
        members=members,
    )


def _watched(row: StatusRow, settings: Settings) -> StatusRow:
    """Tell a replacement that somebody waits for from one that was left half done."""
    if not row.half_done:
        return row
    attendant = attendant_of(settings.lock_dir, settings.node_name, row.name)
    if attendant is None:
        where = f" on {row.head}" if row.head else ""
        finish = f"`sparkdeploy rollback {row.name}`{where} finishes or reverts it"
        return replace(row, half_done=f"{row.half_done}; {finish}")
    told = f"{row.half_done}; {attendant.describe()} waits for it"
    return replace(row, state=BEING_REPLACED, half_done=told)


def read_quiet_log(
    name: str, *, node: str | None = None, follow: bool, tail: int | None
) -> Iterator[str]:
    """As `read_log`, without the hundreds of lines in which NCCL tells what it does."""

    if not tail:
        return without_chatter(read_log(name, node=node, follow=follow, tail=tail))
    asked: int | None = tail + CHATTER_LINES
    raw = _lines(read_log(name, node=node, follow=False, tail=asked))
    found = _lines(without_chatter(raw))
    if len(found) < tail and len(raw) == asked:
        # There is more, and NCCL has said more than it usually does.
        asked = None
        found = _lines(without_chatter(read_log(name, node=node, follow=False, tail=asked)))
    if not follow:
        return iter(found[-tail:])
    coming = without_chatter(read_log(name, node=node, follow=True, tail=asked))
    return _without_first(max(len(found) - tail, 0), coming)


def _lines(pieces: Iterable[str]) -> list[str]:
    return list(io.StringIO("".join(pieces), newline="\n"))


def _without_first(count: int, pieces: Iterator[str]) -> Iterator[str]:
    """Leave out as many lines; a piece has one at most."""
    for piece in pieces:
        if count == 0:
            yield piece
        elif piece.endswith("\n"):
            count -= 1


def read_log(
    name: str, *, node: str | None = None, follow: bool, tail: int | None
) -> Iterator[str]:
    """Yield a deployment's log as text, on a cluster that of `node` or of its head."""
    settings = load_settings()
    opened = this_node(settings) if node is None else open_nodes(settings, frozenset({node}))
    with opened as nodes:
        where = nodes.here if node is None else nodes.node(node)
        # A chunk may end in the middle of a character.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with named(where):
            current = deployments.require_deployment(where.docker, name).current
            for chunk in where.docker.logs(current.container_id, follow=follow, tail=tail):
                yield decoder.decode(chunk)
