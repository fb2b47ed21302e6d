"""Look at, follow and end deployments."""

from __future__ import annotations

import codecs
import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkdeploy.commands import cluster_operate
from sparkdeploy.commands.drafting import connect
from sparkdeploy.console import console, format_gib, format_seconds
from sparkdeploy.deploy import deployments
from sparkdeploy.deploy.changing import changing
from sparkdeploy.deploy.serving import answers
from sparkdeploy.node.lock import lock_holder, watch_name
from sparkdeploy.node.users import is_another
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.deploy.deployments import Deployment, MemberRow, StatusRow
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings

BEING_REPLACED = "being replaced"
NAMED_STRANGERS = 3
SHOWN_CHARACTERS = 80


def current_rows() -> tuple[StatusRow, ...]:
    """Return a row for every deployment on this node."""
    settings = load_settings()
    with connect(settings) as host:
        rows = deployments.status_rows(host, _is_healthy, now=datetime.now(UTC))
        _name_strangers(host)
    members = cluster_operate.members(settings)
    watched = (_watched(row, settings) for row in rows)
    return tuple(_with_members(row, members.get(row.name, ())) for row in watched)


def _with_members(row: StatusRow, members: tuple[MemberRow, ...]) -> StatusRow:
    if all(member.state == deployments.RUNNING for member in members):
        return replace(row, members=members)
    return replace(row, members=members, state=deployments.BROKEN)


def _watched(row: StatusRow, settings: Settings) -> StatusRow:
    """Tell a replacement that somebody waits for from one that was left half done."""
    if not row.half_done:
        return row
    watcher = lock_holder(settings.lock_dir, watch_name(settings.node_name, row.name))
    if watcher is None:
        left = f"{row.half_done}; `sparkdeploy rollback {row.name}` finishes or reverts it"
        return replace(row, half_done=left)
    told = f"{row.half_done}; {watcher.describe()} waits for it"
    return replace(row, state=BEING_REPLACED, half_done=told)


def status_lines(rows: tuple[StatusRow, ...]) -> Iterator[str]:
    """Yield the table a person reads."""
    if not rows:
        yield "nothing is deployed"
        return
    yield f"{'name':<12} {'recipe':<12} {'state':<14} {'port':>5} {'up':>8} {'memory':>9}"
    for row in rows:
        up = format_seconds(row.uptime_s) if row.uptime_s is not None else "-"
        memory = format_gib(row.memory_bytes) if row.memory_bytes is not None else "-"
        port = row.port if row.port is not None else "-"
        yield f"{row.name:<12} {row.recipe:<12} {row.state:<14} {port:>5} {up:>8} {memory:>9}"
        if is_another(row.user):
            yield f"  deployed by {row.user}"
        for member in row.members:
            yield f"  {member.node}: {member.state}"
        if row.half_done:
            yield f"  {row.half_done}"
        if row.kept:
            earlier = "an earlier one is" if row.kept == 1 else f"{row.kept} earlier ones are"
            yield f"  {earlier} kept: `sparkdeploy rollback {row.name}` brings the newest back"


def read_log(
    name: str, *, node: str | None = None, follow: bool, tail: int | None
) -> Iterator[str]:
    """Yield a deployment's log as text, on a cluster that of `node` or of its head."""
    if node is not None:
        settings = load_settings()
        yield from cluster_operate.read_log_of(node, name, settings, follow=follow, tail=tail)
        return
    with connect(load_settings()) as host:
        # A chunk may end in the middle of a character.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for chunk in deployments.deployment_log(host, name, follow=follow, tail=tail):
            yield decoder.decode(chunk)


def take_down(name: str) -> tuple[str, ...]:
    """Stop and remove one deployment; return the names of its containers."""
    with _changing(f"down {name}") as (host, settings):
        _say_whose(host, name)
        return (
            *deployments.down(host, name),
            *cluster_operate.down_elsewhere(name, settings),
        )


def take_everything_down() -> tuple[str, ...]:
    """Stop and remove every deployment; return the names of their containers."""
    with _changing("down --all") as (host, settings):
        names = [item.name for item in deployments.list_deployments(host)]
        removed = [container for name in names for container in deployments.down(host, name)]
        for name in cluster_operate.noted_deployments(settings):
            removed += cluster_operate.down_elsewhere(name, settings)
        return tuple(removed)


@contextlib.contextmanager
def _changing(command: str) -> Iterator[tuple[DockerHost, Settings]]:
    """Hold the node's lock: nothing else may change its containers meanwhile."""
    settings = load_settings()
    with connect(settings) as host, changing(settings, command):
        _name_strangers(host)
        yield host, settings


def _say_whose(host: DockerHost, name: str) -> None:
    """Whoever may use the Docker Engine may end another user's deployment; it should be known."""
    found = deployments.find_deployment(host, name)
    if found is not None and is_another(found.current.user):
        console.warn(f"{name} was deployed by {found.current.user}")


def _name_strangers(host: DockerHost) -> None:
    """Anybody who may use the Docker Engine can write our labels on what is none of ours."""
    names = host.strangers()
    if names:
        more = len(names) - NAMED_STRANGERS
        rest = f" and {more} more" if more > 0 else ""
        console.warn(
            "left alone, for they carry sparkdeploy's labels and other names: "
            + ", ".join(name[:SHOWN_CHARACTERS] for name in names[:NAMED_STRANGERS])
            + rest
        )


def _is_healthy(deployment: Deployment) -> bool:
    return answers(deployment.current)
