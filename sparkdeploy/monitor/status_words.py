"""Deployments as `status` shows them: a row each, and beneath it what is the matter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sparkdeploy.deploy import status
from sparkdeploy.export.systemd_unit import unit_name
from sparkdeploy.node.facts import is_another
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.terminal.style import Piece, Style, line_of
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_gib, format_seconds, local_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.deploy.status import StatusRow
    from sparkdeploy.terminal.style import Line
    from sparkdeploy.terminal.tables import Block, TextRow

COLUMNS = (
    TextColumn("name"),
    TextColumn("state"),
    TextColumn("URL"),
    TextColumn("model"),
    TextColumn("recipe"),
    TextColumn("since"),
    TextColumn("requests", Fill.FIGURE),
    TextColumn("a minute", Fill.FIGURE),
    TextColumn("restarts", Fill.FIGURE),
    TextColumn("memory", Fill.FIGURE),
)
INKS = {
    status.HEALTHY: Style.GOOD,
    status.RUNNING: Style.GOOD,
    status.WORKER: Style.PLAIN,
    "starting": Style.CAUTION,
    status.BEING_REPLACED: Style.CAUTION,
    status.STOPPED: Style.QUIET,
}
"""Every other state is a failure."""
MEMBER_INKS = {status.RUNNING: Style.PLAIN, status.STOPPED: Style.QUIET}


def status_lines(rows: Sequence[StatusRow]) -> Iterator[Block]:
    if not rows:
        yield (
            "nothing is deployed; `sparkdeploy up` deploys the default recipe, "
            "`sparkdeploy list` shows all of them"
        )
        return
    yield TextTable(COLUMNS, tuple(map(_row, rows)))
    if any(row.requests_a_minute is not None for row in rows):
        yield "(requests: finished since vLLM started, by its own count; a minute: their mean)"


def _row(row: StatusRow) -> TextRow:
    restarts = str(row.restarts) if row.uptime_s is not None else ""
    return row_of(
        Piece(row.name, Style.STRONG),
        Piece(row.state, INKS.get(row.state, Style.BAD)),
        row.url,
        row.model,
        row.recipe,
        _since(row),
        f"{row.requests:,}" if row.requests is not None else "",
        f"{row.requests_a_minute:.1f}" if row.requests_a_minute is not None else "",
        Piece(restarts, Style.CAUTION if row.restarts else Style.PLAIN),
        format_gib(row.memory_bytes) if row.memory_bytes is not None else "",
        beneath=_beneath(row),
    )


def _since(row: StatusRow) -> str:
    """Return when it was started and how long ago that is."""
    if row.uptime_s is None:
        return ""
    ago = format_seconds(row.uptime_s)
    if not row.since:
        return f"{ago} ago"
    moment = datetime.fromisoformat(row.since)
    return f"{local_time(moment, moment + timedelta(seconds=row.uptime_s))} ({ago})"


def _moment(stamped: str) -> str:
    """Return when something was, by the clock here, and how long ago that is."""
    moment, now = datetime.fromisoformat(stamped), datetime.now(UTC)
    # A clock that was set back is no reason to show an end in the future.
    ago_s = max((now - moment).total_seconds(), 0.0)
    return f"{local_time(moment, now)} ({format_seconds(ago_s)} ago)"


def _how_to_start(row: StatusRow) -> str:
    if row.head:
        return f"`sparkdeploy start {row.name}` on {row.head} starts it again"
    if row.state == status.HALF_STOPPED:
        return f"`sparkdeploy stop {row.name}` ends what still runs of it"
    return f"`sparkdeploy start {row.name}` starts it again"


def _beneath(row: StatusRow) -> Iterator[Line | str]:
    if is_another(row.user):
        yield f"  deployed by {row.user}"
    if row.head:
        yield f"  worker of {row.head}; `sparkdeploy status` there shows the whole"
    if row.exposure == Exposure.PUBLIC.value:
        yield f"  other machines reach it, with its key, on port {row.port}"
    if row.restarts:
        times = "once" if row.restarts == 1 else f"{row.restarts} times"
        told = f"restarted {times}, last because: {row.last_cause}"
        yield line_of("  ", Piece(told, Style.CAUTION))
    if row.drafting:
        yield line_of("  ", Piece("!", Style.CAUTION), f" {row.drafting}")
    for member in row.members:
        ink = MEMBER_INKS.get(member.state, Style.BAD)
        yield line_of(f"  {member.node}: ", Piece(member.state, ink))
    if row.half_done:
        yield f"  {row.half_done}"
    yield from _boot(row)
    yield from _next_step(row)


def _boot(row: StatusRow) -> Iterator[Line | str]:
    unit = unit_name(row.name)
    if row.wake_failed:
        yield line_of("  ", Piece(f"its last start failed because: {row.wake_failed}", Style.BAD))
        yield f"  `journalctl --unit={unit}` has what it said; the next connection tries again"
    if not row.given_up:
        return
    yield line_of("  ", Piece(f"systemd has given it up, last because: {row.given_up}", Style.BAD))
    yield f"  `journalctl --unit={unit}` has what each start said"
    yield f"  `sudo systemctl reset-failed {unit}`, then `sudo systemctl start {unit}` tries again"


def _next_step(row: StatusRow) -> Iterator[str]:
    if row.stopped_at:
        why = f", {row.stopped_because}," if row.stopped_because else ""
        yield f"  stopped{why} {_moment(row.stopped_at)}: {_how_to_start(row)}"
    elif row.exit_code is not None and not row.half_done and row.state != status.STOPPED:
        shows, packs = f"`sparkdeploy logs {row.name}`", f"`sparkdeploy diagnose {row.name}`"
        yield f"  {shows} shows why, {packs} packs it"
    elif row.state == "starting":
        yield f"  `sparkdeploy logs {row.name} --follow` shows how far it is"
    if row.kept:
        earlier = "an earlier one is" if row.kept == 1 else f"{row.kept} earlier ones are"
        yield f"  {earlier} kept: `sparkdeploy rollback {row.name}` brings the newest back"
