"""What the watch shows at one moment: figures from readings, and a snapshot of all."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import Enum
from itertools import pairwise
from typing import Any

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import Inspected
from sparkdeploy.monitor.status_row import NO_CONTAINER, RUNNING
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.facts import GpuLoad
from sparkdeploy.node.reports import parse_time
from sparkdeploy.server.metrics import Histogram, Metrics, Speculation
from sparkdeploy.terminal.safe_text import visible_line

WINDOW_S = 60.0
RATES_KEPT = 240
"""Of the sparkline: as many seconds as a wide terminal has columns."""
NOW_S = 3.0
"""A rate over a longer gap is an average, and not what is so now."""


@dataclass(frozen=True, slots=True)
class TimedMetrics:
    at_s: float
    """Of a clock that never goes back."""
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class MetricsHistory:
    """What one server counted in the last minute, and its rates for longer."""

    seen: tuple[TimedMetrics, ...] = ()
    """Oldest first; all of one server process."""
    rates: tuple[float, ...] = ()

    def after(self, latest: TimedMetrics) -> "MetricsHistory":
        """Return the history with one more reading; a server that started anew has no past."""
        last = self.seen[-1] if self.seen else None
        if last is not None and latest.at_s <= last.at_s:
            return self
        if last is not None and latest.metrics.is_after_restart_of(last.metrics):
            return MetricsHistory((latest,), self.rates)
        rate = _rate(last, latest)
        rates = self.rates if rate is None else (*self.rates, rate)[-RATES_KEPT:]
        since_s = latest.at_s - WINDOW_S
        # One older than a minute stays: the minute begins between it and the next.
        kept = [
            item for item, follower in pairwise((*self.seen, latest)) if follower.at_s > since_s
        ]
        return replace(self, seen=(*kept, latest), rates=rates)

    def idle(self) -> "MetricsHistory":
        """Return the history of a server that did not answer: nothing came out of it."""
        return replace(self, rates=(*self.rates, 0.0)[-RATES_KEPT:])


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds; None where nothing of the kind happened in the last minute."""

    p50_s: float | None = None
    p95_s: float | None = None

    @classmethod
    def of(cls, lately: Histogram) -> "Percentiles":
        return cls(lately.quantile(0.5), lately.quantile(0.95))


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """None: the server does not count it, or nothing happened that it could be told from."""

    tokens_per_s: float | None = None
    rates: tuple[float, ...] = ()
    running: int | None = None
    waiting: int | None = None
    requests_a_minute: float | None = None
    first_token: Percentiles = Percentiles()
    gap: Percentiles = Percentiles()
    accepted: tuple[float, ...] = ()
    """Of the last minute's drafts the share that was accepted, by position; 0 to 1."""
    prefix_hits: float | None = None
    """Of the last minute's prompt tokens that were looked for; 0 to 1."""
    kv_usage: float | None = None
    preemptions: int | None = None
    preempted_lately: int | None = None
    generated_tokens: int | None = None
    prompt_tokens: int | None = None


def server_figures(history: MetricsHistory) -> ServerFigures:
    if not history.seen:
        return ServerFigures(rates=history.rates)
    newest, oldest = history.seen[-1], history.seen[0]
    now, then = newest.metrics, oldest.metrics
    before = history.seen[-2] if len(history.seen) > 1 else None
    names = ("running", "waiting", "preemptions", "generated_tokens", "prompt_tokens")
    whole: dict[str, Any] = {name: _whole(getattr(now, name)) for name in names}
    return ServerFigures(
        tokens_per_s=_rate(before, newest),
        rates=history.rates,
        requests_a_minute=_a_minute(history.seen),
        first_token=Percentiles.of(now.first_token.since(then.first_token)),
        gap=Percentiles.of(now.gap.since(then.gap)),
        accepted=_accepted(now.drafted, then.drafted),
        prefix_hits=_share(
            _grown(now.prefix_hits, then.prefix_hits),
            _grown(now.prefix_queries, then.prefix_queries),
        ),
        kv_usage=now.kv_usage,
        preempted_lately=_whole(_grown(now.preemptions, then.preemptions)),
        **whole,
    )


def _rate(before: TimedMetrics | None, after: TimedMetrics) -> float | None:
    if before is None or after.at_s - before.at_s > NOW_S:
        return None
    grown = _grown(after.metrics.generated_tokens, before.metrics.generated_tokens)
    return None if grown is None else grown / (after.at_s - before.at_s)


def _a_minute(seen: Sequence[TimedMetrics]) -> float | None:
    """Return finished requests a minute; a watch that has just begun knows less than a minute."""
    span_s = seen[-1].at_s - seen[0].at_s
    grown = _grown(seen[-1].metrics.finished, seen[0].metrics.finished)
    return None if grown is None or span_s <= 0 else grown * 60.0 / max(span_s, WINDOW_S)


def _accepted(now: Speculation | None, then: Speculation | None) -> tuple[float, ...]:
    if now is None or then is None or now.drafts <= then.drafts:
        return ()
    if then.accepted_per_position and len(then.accepted_per_position) != len(
        now.accepted_per_position
    ):
        return ()
    return now.since(then).acceptance_per_position


def _grown(now: float | None, then: float | None) -> float | None:
    return None if now is None or then is None else max(now - then, 0.0)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else min(part / whole, 1.0)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


GIB = 2**30
ERROR_CHARACTERS = 300
HALF_REPLACED = "being replaced, or left half replaced: `sparkdeploy status` says which"


class DeploymentState(Enum):
    """How a deployment is."""

    SERVING = "serving"
    STARTING = "starting"
    SILENT = "does not answer"
    BROKEN = "broken"
    """A cluster's server that lost one of its nodes."""
    EXITED = "exited"
    STOPPED = "stopped"
    REMOVED = "removed"
    WORKER = "worker"

    @property
    def is_gone(self) -> bool:
        return self not in {
            DeploymentState.SERVING,
            DeploymentState.STARTING,
            DeploymentState.WORKER,
        }


@dataclass(frozen=True, slots=True)
class ServerSample:
    """What the reader of one server knows."""

    history: MetricsHistory = field(default_factory=MetricsHistory)
    is_answering: bool = False
    has_answered: bool = False
    silent_since: datetime | None = None
    problem: str = ""
    """Why it does not answer, in the words of who knows."""


@dataclass(frozen=True, slots=True)
class ContainerSample:
    """What a Docker Engine says of one deployment."""

    found: Inspected
    restarts: int = 0
    last_error: str = ""
    removed_at: datetime | None = None
    floor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What a node told last; `gone_since` is set while it tells nothing."""

    name: str
    available_bytes: int | None = None
    total_bytes: int | None = None
    gpu: GpuLoad | None = None
    gone_since: datetime | None = None
    problem: str = ""
    parts: Mapping[str, str] | None = None
    """For each deployment the state of this node's container; None: not known, or this machine."""
    floor_bytes: int | None = None
    """Below it the guard ends what serves there; of a snapshot alone."""


@dataclass(frozen=True, slots=True)
class WatchedDeployment:
    name: str
    recipe: str
    model: str
    url: str
    life: DeploymentState
    state: str
    """In words, such as `exited (86)`."""
    gone_since: datetime | None
    up_since: datetime | None
    restarts: int
    last_error: str
    figures: ServerFigures
    note: str = ""


@dataclass(frozen=True, slots=True)
class WatchSnapshot:
    at: datetime
    deployments: tuple[WatchedDeployment, ...] = ()
    nodes: tuple[NodeSample, ...] = ()
    problem: str = ""
    """Why the Docker Engine of this machine says nothing."""


def snapshot_of(
    at: datetime,
    containers: Iterable[ContainerSample],
    servers: Mapping[str, ServerSample],
    nodes: Iterable[NodeSample],
    problem: str = "",
) -> WatchSnapshot:
    """Put a snapshot together; `servers` are by the name of their deployment."""
    known, looks = tuple(nodes), tuple(containers)
    return WatchSnapshot(
        at,
        tuple(_deployment(it, servers.get(it.found.name, ServerSample()), known) for it in looks),
        tuple(_node(it, looks, is_here=number == 0) for number, it in enumerate(known)),
        visible_line(problem),
    )


def _deployment(
    look: ContainerSample, server: ServerSample, nodes: tuple[NodeSample, ...]
) -> WatchedDeployment:
    fact = look.found.current
    lost = () if look.removed_at else tuple(_lost_parts(fact, nodes))
    life = _life(look, server, is_whole=not lost)
    runs = life not in {DeploymentState.EXITED, DeploymentState.STOPPED, DeploymentState.REMOVED}
    error = look.last_error or (server.problem if life is DeploymentState.SILENT else "")
    return WatchedDeployment(
        name=look.found.name,
        recipe=fact.labels.get(labels.RECIPE, ""),
        model=fact.labels.get(labels.SERVED_NAME, ""),
        url=f"http://127.0.0.1:{fact.port}" if fact.port is not None else "",
        life=life,
        state=_state(life, fact),
        gone_since=_gone_since(life, look, server, nodes),
        up_since=parse_time(fact.started_at) if runs and fact.started_at else None,
        restarts=look.restarts,
        last_error=visible_line(error)[:ERROR_CHARACTERS],
        figures=server_figures(server.history),
        note="; ".join((*lost, *([HALF_REPLACED] if look.found.is_half_replaced else []))),
    )


def _life(look: ContainerSample, server: ServerSample, *, is_whole: bool) -> DeploymentState:
    found, serving = look.found, look.found.serving
    if look.removed_at is not None:
        return DeploymentState.REMOVED
    if found.replaced is None and (serving is None or serving.is_stopped):
        return DeploymentState.STOPPED
    if not found.current.is_running:
        return DeploymentState.EXITED
    if found.is_of_another_head:
        return DeploymentState.WORKER
    if not is_whole:
        return DeploymentState.BROKEN
    silent = DeploymentState.SILENT if server.has_answered else DeploymentState.STARTING
    return DeploymentState.SERVING if server.is_answering else silent


def _state(life: DeploymentState, fact: ContainerFact) -> str:
    if life is DeploymentState.EXITED:
        return f"exited ({fact.exit_code})" if fact.state == "exited" else fact.state
    return f"worker of {fact.nodes[0]}" if life is DeploymentState.WORKER else life.value


def _gone_since(
    life: DeploymentState,
    look: ContainerSample,
    server: ServerSample,
    nodes: tuple[NodeSample, ...],
) -> datetime | None:
    fact = look.found.current
    if life is DeploymentState.REMOVED:
        return look.removed_at
    if life in {DeploymentState.EXITED, DeploymentState.STOPPED}:
        return parse_time(fact.finished_at) if fact.finished_at else None
    if life is DeploymentState.SILENT:
        return server.silent_since
    if life is DeploymentState.BROKEN:
        gone = (node.gone_since for node in nodes if node.name in fact.nodes)
        return min((moment for moment in gone if moment is not None), default=None)
    return None


def _lost_parts(fact: ContainerFact, nodes: tuple[NodeSample, ...]) -> Iterable[str]:
    """Say which of the other nodes of a deployment have lost their part of it."""
    if fact.rank:
        return
    by_name = {node.name: node for node in nodes}
    for name in fact.nodes[1:]:
        node = by_name.get(name)
        if node is None:
            continue
        if node.gone_since is not None:
            yield f"{name} is gone"
            continue
        known = node.parts if node.parts is not None else {fact.deployment: RUNNING}
        if (state := known.get(fact.deployment, NO_CONTAINER)) != RUNNING:
            yield f"{name}: {state}"


def _node(look: NodeSample, deployments: Iterable[ContainerSample], *, is_here: bool) -> NodeSample:
    floors = (
        it.floor_bytes
        for it in deployments
        if it.removed_at is None and it.found.current.is_running
        if look.name in it.found.current.nodes or (is_here and not it.found.current.nodes)
    )
    floor = max((it for it in floors if it is not None), default=None)
    problem = visible_line(look.problem)[:ERROR_CHARACTERS]
    return replace(look, floor_bytes=floor, problem=problem)


def snapshot_json(snapshot: WatchSnapshot) -> str:
    """Return what a line of `--json` holds."""
    content = {
        "at": snapshot.at,
        "problem": snapshot.problem,
        "deployments": [_deployment_as_dict(item, snapshot.at) for item in snapshot.deployments],
        "nodes": [_node_as_dict(item) for item in snapshot.nodes],
    }
    return json.dumps(content, sort_keys=True, default=datetime.isoformat)


def _deployment_as_dict(item: WatchedDeployment, now: datetime) -> dict[str, Any]:
    content = asdict(item)
    figures, up_since = content.pop("figures"), content.pop("up_since")
    # The curve is what a reader of every line has already.
    del figures["rates"], content["life"]
    up_s = round(max((now - up_since).total_seconds(), 0.0), 1) if up_since is not None else None
    return {**content, "is_gone": item.life.is_gone, "uptime_s": up_s, **figures}


def _node_as_dict(item: NodeSample) -> dict[str, Any]:
    return {
        "name": item.name,
        "is_gone": item.gone_since is not None,
        "gone_since": item.gone_since,
        "problem": item.problem,
        "memory_available_bytes": item.available_bytes,
        "memory_total_bytes": item.total_bytes,
        "memory_floor_bytes": item.floor_bytes,
        **asdict(item.gpu or GpuLoad(None, None, None)),
    }
