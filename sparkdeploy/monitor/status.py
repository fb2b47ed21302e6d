"""`status` and `logs`: what runs, what it writes, and what systemd says of its start at boot."""

import codecs
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sparkdeploy.deploy.deployments import (
    Inspected,
    deployments_in,
    find_deployment,
    inspect_deployment,
    no_deployment,
    nodes_with,
    require_deployment,
)
from sparkdeploy.deploy.evidence import ROOT_CAUSE, newest_crash
from sparkdeploy.deploy.nodes import ClusterRecord
from sparkdeploy.deploy.serving import answers
from sparkdeploy.errors import NodeError, RecipeError, UnhealthyError
from sparkdeploy.export.systemd_unit import proxy_name, socket_name, unit_name
from sparkdeploy.monitor.status_row import (
    HALF_REPLACED,
    HEALTHY,
    NO_CONTAINER,
    OTHER_LAUNCH,
    RUNNING,
    STOPPED,
    MemberRow,
    StatusRow,
    status_row,
)
from sparkdeploy.node.cluster import open_nodes, this_node
from sparkdeploy.node.facts import THIS_MACHINE, Machine, output_or_none
from sparkdeploy.node.node import Node, Nodes, at_once, named
from sparkdeploy.server.log_lines import without_nccl_info
from sparkdeploy.settings import Settings, load_settings

CHATTER_LINES = 2000
"""More than NCCL writes at a start, so that the last lines asked for are found behind it."""
NOT_CONFIGURED = "not in config.yaml"


def current_rows() -> tuple[StatusRow, ...]:
    settings = load_settings()
    record = ClusterRecord.below(settings.state_dir)
    with this_node(settings) as nodes:
        here, host = nodes.here, nodes.here.docker
        listed = deployments_in(here.listing).values()
        inspected = (inspect_deployment(host, it) for it in listed)
        found = {it.name: it for it in inspected if it is not None}
        names = dict.fromkeys((*found, *record.deployments()))
        may_have = {name: nodes_with(found.get(name), record.nodes(name)) for name in names}
        # Another machine that heads a deployment knows its other nodes.
        headed = {name for name, it in found.items() if it.is_of_another_head}
        asked = {name: it for name, it in may_have.items() if it and name not in headed}
        members = _members(asked, found, settings, here)
        rows = [
            status_row(host, it, settings, answers, members.get(name, ()))
            for name, it in found.items()
        ]
    left = (_left_over(name, members.get(name, ())) for name in asked if name not in found)
    seen = (*rows, *(row for row in left if row.members))
    return with_failed_starts(seen, failed_starts(), settings.crashes_dir)


def rows_of(names: Collection[str], rows: Sequence[StatusRow]) -> tuple[StatusRow, ...]:
    """Return the rows of the named deployments; NodeError for a name that none of them has."""
    known = [row.name for row in rows]
    for name in names:
        if name not in known:
            raise no_deployment(name, known)
    return tuple(row for row in rows if row.name in names)


def _members(
    nodes: Mapping[str, tuple[str, ...]],
    heads: Mapping[str, Inspected],
    settings: Settings,
    here: Node,
) -> dict[str, tuple[MemberRow, ...]]:
    """Return what the other nodes of each deployment say; without any, no node is asked."""
    asked = frozenset(name for names in nodes.values() for name in names)
    if not asked:
        return {}
    try:
        with open_nodes(settings, asked, here) as opened:
            return {name: _ask(opened, name, found, heads) for name, found in nodes.items()}
    except (NodeError, RecipeError) as error:
        # Such as nodes that have gone from config.yaml: other deployments are shown all the same.
        return {name: (MemberRow("cluster", error.message),) for name in nodes}


def _ask(
    opened: Nodes, name: str, nodes: tuple[str, ...], heads: Mapping[str, Inspected]
) -> tuple[MemberRow, ...]:
    head = heads.get(name)
    needed = head.current.nodes if head is not None else ()
    # The head is this machine also where config.yaml calls it otherwise by now.
    own = {opened.here.name, *needed[:1]}
    others = [node for node in nodes if node not in own]
    states = at_once(partial(_state_on, opened, name, head), others)
    return tuple(
        MemberRow(other, state)
        for other, state in zip(others, states, strict=True)
        if state != NO_CONTAINER or other in needed
    )


def _state_on(nodes: Nodes, deployment: str, head: Inspected | None, name: str) -> str:
    if nodes.config is None or name not in nodes.config.names:
        return NOT_CONFIGURED
    try:
        node = nodes.node(name)
        with named(node):
            found = find_deployment(node.docker, deployment)
    except NodeError as error:
        return f"does not answer ({error.message})"
    fact = found.serving if found is not None else None
    if found is not None and found.is_half_replaced:
        return HALF_REPLACED
    if fact is None or fact.nodes[:1] != (nodes.here.name,):
        return NO_CONTAINER
    if not fact.is_running:
        # One may die of its head's end before it is told to stop.
        serving = head.serving if head is not None else None
        with_head = serving is not None and serving.is_stopped and serving.launch == fact.launch
        is_stopped = fact.is_stopped or with_head
        return STOPPED if is_stopped else f"exited ({fact.exit_code})"
    is_of_this_start = head is None or fact.launch == head.current.launch
    return RUNNING if is_of_this_start else OTHER_LAUNCH


def _left_over(name: str, members: tuple[MemberRow, ...]) -> StatusRow:
    """Return the row of what `down` could not reach: nothing is here, something may be there."""
    is_gone = all(member.state == NOT_CONFIGURED for member in members)
    does = "forgets it" if is_gone else "removes what is left when the node is back"
    return StatusRow(
        name=name,
        recipe="",
        state="left over",
        half_done=f"`sparkdeploy down {name}` {does}",
        members=members,
    )


def read_quiet_log(
    name: str, *, node: str | None = None, follow: bool, tail: int | None
) -> Iterator[str]:
    """As `read_log`, without the hundreds of lines in which NCCL tells what it does."""

    if not tail:
        return without_nccl_info(read_log(name, node=node, follow=follow, tail=tail))
    asked: int | None = tail + CHATTER_LINES
    raw = _lines(read_log(name, node=node, follow=False, tail=asked))
    found = _lines(without_nccl_info(raw))
    if len(found) < tail and len(raw) == asked:
        # There is more, and NCCL has said more than it usually does.
        asked = None
        found = _lines(without_nccl_info(read_log(name, node=node, follow=False, tail=asked)))
    if not follow:
        return iter(found[-tail:])
    coming = without_nccl_info(read_log(name, node=node, follow=True, tail=asked))
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
            current = require_deployment(where.docker, name).current
            for chunk in where.docker.logs(current.container_id, follow=follow, tail=tail):
                yield decoder.decode(chunk)


RUNS_HERE = Path("/run/systemd/system")
"""Is there where systemd is the machine's first process (sd_booted)."""
READ_TIMEOUT_S = 2.0
NOT_STARTED = "not started"
_PROPERTIES = ("Id", "ActiveState", "ExecMainStatus", "Restart")
_OF_DEPLOYMENT = re.compile(re.escape(unit_name("NAME")).replace("NAME", "(.+)"))


@dataclass(frozen=True, slots=True)
class FailedStart:
    exit_code: int
    is_woken: bool = False
    """Whether the next connection to its socket starts it again."""


def failed_starts(
    machine: Machine = THIS_MACHINE, runs_here: Path = RUNS_HERE
) -> Mapping[str, FailedStart]:
    """Return the last start of each deployment that systemd does not start again by itself."""
    if not runs_here.is_dir():
        return {}
    properties = f"--property={','.join(_PROPERTIES)}"
    asked = ("systemctl", "show", properties, unit_name("*"), socket_name("*"))
    told = output_or_none(machine, asked, timeout_s=READ_TIMEOUT_S) or ""
    return dict(_failed(told))


def with_failed_starts(
    rows: Sequence[StatusRow], failed: Mapping[str, FailedStart], crashes_dir: Path
) -> tuple[StatusRow, ...]:
    """Say of every deployment whose start failed why; those that somebody started since run."""
    missing = failed.keys() - {row.name for row in rows}
    not_started = (StatusRow(name=name, recipe="", state=NOT_STARTED) for name in sorted(missing))
    return tuple(
        row
        if row.state in (HEALTHY, RUNNING) or row.name not in failed
        else _with_failed(row, failed[row.name], crashes_dir)
        for row in (*rows, *not_started)
    )


def _failed(told: str) -> Iterator[tuple[str, FailedStart]]:
    """Yield deployments of failed units; what is told of each unit ends with an empty line."""
    blocks = told.strip().split("\n\n")
    units = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks]
    named = {found[1]: it for it in units if (found := _OF_DEPLOYMENT.fullmatch(it.get("Id", "")))}
    proxies = {proxy_name(name) for name in named}
    listening = {it.get("Id") for it in units if it.get("ActiveState") == "active"}
    for name, unit in named.items():
        if unit.get("ActiveState") == "failed" and unit["Id"] not in proxies:
            # One that systemd starts again by itself it has given up, for a connection too.
            is_woken = unit.get("Restart") == "no" and socket_name(name) in listening
            yield name, FailedStart(int(unit.get("ExecMainStatus") or 0), is_woken)


def _with_failed(row: StatusRow, failed: FailedStart, crashes_dir: Path) -> StatusRow:
    code, why = failed.exit_code, f"exit code {failed.exit_code}"
    crash = newest_crash(crashes_dir, row.name) if code == UnhealthyError.exit_code else None
    if crash is not None and (crash / ROOT_CAUSE).is_file():
        why = (crash / ROOT_CAUSE).read_text(encoding="utf-8").strip()
    return replace(row, wake_failed=why) if failed.is_woken else replace(row, given_up=why)
