"""Deployments as `status` shows them: a row each, and beneath it what is the matter."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import Inspected, uptime_s
from sparkdeploy.deploy.nodes import ClusterRecord
from sparkdeploy.deploy.serving import metrics_of, stopped_because
from sparkdeploy.export.systemd_unit import unit_name
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.facts import is_another
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.lock import attendant_of
from sparkdeploy.node.reports import parse_time
from sparkdeploy.recipe.answers import Answers, Task
from sparkdeploy.server.crash import Cause
from sparkdeploy.server.health import restarts_of
from sparkdeploy.server.metrics import Metrics, low_acceptance_warning
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.safe_text import visible_line
from sparkdeploy.terminal.style import Line, Piece, Style, line_of
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_gib, format_seconds, iso_utc, local_time

RUNNING = "running"
NO_CONTAINER = "no container"
HEALTHY = "healthy"
BROKEN = "broken"
"""A cluster that lost a node: its head may look healthy and will hang."""
HALF_REPLACED = "half replaced"
HALF_STOPPED = "half stopped"
"""A cluster's head is stopped, and a rank of it goes on."""
STOPPED = "stopped"
OTHER_LAUNCH = "of another start than the head"
CAUSE_CHARACTERS = 200
WORKER = "worker"
"""A rank of what another machine heads."""
BEING_REPLACED = "being replaced"
INKS = {
    HEALTHY: Style.GOOD,
    RUNNING: Style.GOOD,
    WORKER: Style.PLAIN,
    "starting": Style.CAUTION,
    BEING_REPLACED: Style.CAUTION,
    STOPPED: Style.QUIET,
}
"""Every other state is a failure."""
MEMBER_INKS = {RUNNING: Style.PLAIN, STOPPED: Style.QUIET}


@dataclass(frozen=True, slots=True)
class MemberRow:
    """What `status` shows of a cluster deployment on one of its other nodes."""

    node: str
    state: str
    """running, exited (N), no container, half replaced, or why the node does not answer."""


@dataclass(frozen=True, slots=True)
class StatusRow:
    name: str
    recipe: str
    state: str
    """healthy, starting, stopped, exited (N), created, half or being replaced; half stopped or
    broken: a cluster of which ranks run and others do not."""
    port: int | None = None
    uptime_s: float | None = None
    memory_bytes: int | None = None
    exit_code: int | None = None
    container: str = ""
    half_done: str = ""
    kept: int = 0
    """How many earlier containers `rollback` can go back to."""
    members: tuple[MemberRow, ...] = ()
    user: str = ""
    head: str = ""
    """The node that heads it; empty when that is this one."""
    nodes: tuple[str, ...] = ()
    launch: str = ""
    restarts: int = 0
    last_cause: str = ""
    drafting: str = ""
    url: str = ""
    """Where this machine reaches it; empty for a worker's, and without a port."""
    model: str = ""
    answers: tuple[str, ...] = ()
    """What requests it takes, the one that its model is for first: `chat`, `completions`."""
    exposure: str = ""
    """`loopback`, or `public`: other machines reach its port, with a key."""
    since: str = ""
    """When its container was started, in UTC; empty when it does not run."""
    stopped_at: str = ""
    """When it was stopped, in UTC; empty for what runs, failed, or is only kept for a rollback."""
    stopped_because: str = ""
    """Why it stopped itself: `idle for 30m`; empty where a command stopped it."""
    requests: int | None = None
    """Finished since vLLM was started, by its own count; None where it tells nothing."""
    requests_a_minute: float | None = None
    given_up: str = ""
    """Why the last start failed after which systemd gave it up."""
    wake_failed: str = ""
    """Why the last start failed, where the next connection to its socket starts it again."""


def status_row(
    host: DockerHost,
    deployment: Inspected,
    settings: Settings,
    is_answering: Callable[[ContainerFact], bool],
    members: tuple[MemberRow, ...] = (),
) -> StatusRow:
    """Return the row of a deployment; `members` is what the other nodes say of it."""
    fact, serving = deployment.current, deployment.serving
    is_stopped = serving is not None and serving.is_stopped
    own_state = _own_state(deployment, is_answering)
    metrics = metrics_of(fact, settings) if own_state == HEALTHY else Metrics()
    state, half_done = _among_nodes(own_state, deployment, members)
    if half_done:
        state, half_done = _attended(state, half_done, deployment, settings)
    has_no_port = fact.port is None or deployment.is_of_another_head
    restarts, cause = restarts_of(host, fact) if fact.is_running else (0, None)
    return StatusRow(
        name=deployment.name,
        recipe=fact.labels.get(labels.RECIPE, ""),
        state=state,
        port=fact.port,
        uptime_s=uptime_s(fact),
        memory_bytes=host.memory_bytes(fact.container_id) if fact.is_running else None,
        exit_code=None if fact.is_running else fact.exit_code,
        container=fact.name,
        half_done=half_done,
        kept=len(deployment.kept),
        members=members,
        user=fact.user,
        head=fact.nodes[0] if deployment.is_of_another_head else "",
        nodes=fact.nodes,
        launch=fact.launch,
        restarts=restarts,
        last_cause=_last_cause(cause),
        drafting=low_acceptance_warning(metrics.drafted),
        url="" if has_no_port else f"http://127.0.0.1:{fact.port}/v1",
        model=fact.labels.get(labels.SERVED_NAME, ""),
        answers=tuple(it.value for it in _answers(fact, settings).tasks),
        exposure=fact.labels.get(labels.EXPOSURE, ""),
        since=iso_utc(parse_time(fact.started_at)) if fact.is_running else "",
        stopped_at=iso_utc(parse_time(fact.finished_at)) if is_stopped else "",
        stopped_because=stopped_because(fact) if is_stopped else "",
        requests=None if metrics.finished is None else int(metrics.finished),
        requests_a_minute=metrics.finished_a_minute(time.time()),
    )


def _answers(fact: ContainerFact, settings: Settings) -> Answers:
    return ClusterRecord.below(settings.state_dir).answers(fact)


def _among_nodes(
    state: str, deployment: Inspected, members: Sequence[MemberRow]
) -> tuple[str, str]:
    """Return the state and what is half done: a head may look healthy and hang without a worker."""
    half_done, nodes = _half_done(deployment), deployment.current.nodes
    if half_done:
        return state, half_done
    if any(member.state in {HALF_REPLACED, OTHER_LAUNCH} for member in members):
        return HALF_REPLACED, "the nodes have ranks of different starts"
    # What an earlier one has left on other nodes is no part of what serves now.
    asked = (*nodes, "cluster") if nodes else ()
    wanted, otherwise = (STOPPED, HALF_STOPPED) if state == STOPPED else (RUNNING, BROKEN)
    are_alike = all(member.state == wanted for member in members if member.node in asked)
    return (state if are_alike else otherwise), ""


def _attended(
    state: str, half_done: str, deployment: Inspected, settings: Settings
) -> tuple[str, str]:
    """Tell a replacement that somebody waits for from one that was left half done."""
    name = deployment.name
    attendant = attendant_of(settings.lock_dir, settings.node_name, name)
    if attendant is not None:
        return BEING_REPLACED, f"{half_done}; {attendant.describe()} waits for it"
    where = f" on {deployment.current.nodes[0]}" if deployment.is_of_another_head else ""
    return state, f"{half_done}; `sparkdeploy rollback {name}`{where} finishes or reverts it"


def _last_cause(cause: Cause | None) -> str:
    """A line of the log may be of any length, and hold what a terminal obeys."""
    said = visible_line(cause.describe()) if cause is not None else ""
    return said if len(said) <= CAUSE_CHARACTERS else said[: CAUSE_CHARACTERS - 3] + "..."


def _own_state(deployment: Inspected, is_answering: Callable[[ContainerFact], bool]) -> str:
    fact = deployment.current
    if deployment.is_half_replaced:
        return HALF_REPLACED
    if deployment.serving is None or fact.is_stopped:
        return STOPPED
    if fact.is_running and deployment.is_of_another_head:
        return WORKER
    if fact.is_running:
        return HEALTHY if is_answering(fact) else "starting"
    return f"exited ({fact.exit_code})" if fact.state == "exited" else fact.state


def _half_done(deployment: Inspected) -> str:
    old, new = deployment.replaced, deployment.serving
    if old is None:
        return ""
    fate = "still runs" if old.is_running else "is stopped"
    if new is None:
        return f"the old container was set aside and {fate}; there is no new one"
    state = "has been started" if new.is_running else f"is {new.state}"
    return f"the new container {state}; the old one {fate}"


def status_lines(rows: Sequence[StatusRow]) -> Iterator[Block]:
    if not rows:
        yield (
            "nothing is deployed; `sparkdeploy up` deploys the default recipe, "
            "`sparkdeploy list` shows all of them"
        )
        return
    narrow = replace(_table(rows, NARROW), narrow=_table(rows, LEAST))
    yield replace(_table(rows, WIDE), narrow=narrow)
    if any(row.requests_a_minute is not None for row in rows):
        yield "(requests: finished since vLLM started, by its own count; /min: their mean)"


def _table(rows: Sequence[StatusRow], titles: Sequence[str]) -> TextTable:
    columns = (TextColumn(it, Fill.FIGURE if it in FIGURES else Fill.WHOLE) for it in titles)
    cells = (row_of(*(CELLS[it](row) for it in titles), beneath=_beneath(row)) for row in rows)
    return TextTable(tuple(columns), tuple(cells))


def _restarts(row: StatusRow) -> Piece:
    text = str(row.restarts) if row.uptime_s is not None else ""
    return Piece(text, Style.CAUTION if row.restarts else Style.PLAIN)


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
    if row.state == HALF_STOPPED:
        return f"`sparkdeploy stop {row.name}` ends what still runs of it"
    return f"`sparkdeploy start {row.name}` starts it again"


def _beneath(row: StatusRow) -> Iterator[Line | str]:
    if is_another(row.user):
        yield f"  deployed by {row.user}"
    if row.head:
        yield f"  worker of {row.head}; `sparkdeploy status` there shows the whole"
    if row.answers and Task.CHAT.value not in row.answers:
        yield f"  answers {', '.join(row.answers)}"
    if row.exposure == labels.PUBLIC:
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
    elif row.exit_code is not None and not row.half_done and row.state != STOPPED:
        shows, packs = f"`sparkdeploy logs {row.name}`", f"`sparkdeploy diagnose {row.name}`"
        yield f"  {shows} shows why, {packs} packs it"
    elif row.state == "starting":
        yield f"  `sparkdeploy logs {row.name} --follow` shows how far it is"
    if row.kept:
        earlier = "an earlier one is" if row.kept == 1 else f"{row.kept} earlier ones are"
        yield f"  {earlier} kept: `sparkdeploy rollback {row.name}` brings the newest back"


CELLS: Mapping[str, Callable[[StatusRow], Piece | str]] = {
    "name": lambda row: Piece(row.name, Style.STRONG),
    "state": lambda row: Piece(row.state, INKS.get(row.state, Style.BAD)),
    "URL": lambda row: row.url,
    "port": lambda row: str(row.port or ""),
    "model": lambda row: row.model,
    "recipe": lambda row: row.recipe,
    "since": _since,
    "up": lambda row: format_seconds(row.uptime_s) if row.uptime_s is not None else "",
    "requests": lambda row: f"{row.requests:,}" if row.requests is not None else "",
    "/min": lambda row: f"{row.requests_a_minute:.1f}" if row.requests_a_minute is not None else "",
    "restarts": _restarts,
    "memory": lambda row: format_gib(row.memory_bytes) if row.memory_bytes is not None else "",
}
FIGURES = frozenset({"up", "requests", "/min", "restarts", "memory"})
WIDE = tuple(title for title in CELLS if title not in {"port", "up"})
NARROW = ("name", "state", "port", "recipe", "up", "requests", "/min", "memory")
"""What tells deployments apart and shows that they live."""
LEAST = tuple(title for title in NARROW if title != "/min")
