"""A scene for a program, and in plain lines where there is no terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sparkdeploy.monitor import words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sparkdeploy.monitor.figures import ServerFigures
    from sparkdeploy.monitor.scene import Scene, WatchedDeployment, WatchedNode


def scene_as_dict(scene: Scene) -> dict[str, Any]:
    """Return what a line of `--json` holds."""
    return {
        "at": scene.at.isoformat(),
        "problem": scene.problem,
        "deployments": [_deployment(item, scene.at) for item in scene.deployments],
        "nodes": [_node(item) for item in scene.nodes],
    }


def _deployment(item: WatchedDeployment, now: datetime) -> dict[str, Any]:
    up_s = (now - item.up_since).total_seconds() if item.up_since is not None else None
    return {
        "name": item.name,
        "recipe": item.recipe,
        "model": item.model,
        "url": item.url,
        "state": item.told,
        "is_gone": item.life.is_gone,
        "gone_since": _moment(item.since),
        "uptime_s": None if up_s is None else round(max(up_s, 0.0), 1),
        "restarts": item.restarts,
        "last_error": item.last_error,
        "note": item.note,
        **_figures(item.figures),
    }


def _figures(figures: ServerFigures) -> dict[str, Any]:
    told = asdict(figures)
    # The curve is what a reader of every line has already.
    del told["rates"]
    return told


def _node(item: WatchedNode) -> dict[str, Any]:
    gpu = item.gpu
    return {
        "name": item.name,
        "is_gone": item.gone_since is not None,
        "gone_since": _moment(item.gone_since),
        "problem": item.problem,
        "memory_available_bytes": item.available_bytes,
        "memory_total_bytes": item.total_bytes,
        "memory_floor_bytes": item.floor_bytes,
        "power_w": gpu.power_w if gpu else None,
        "sm_clock_mhz": gpu.sm_clock_mhz if gpu else None,
        "temperature_c": gpu.temperature_c if gpu else None,
    }


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def scene_lines(scene: Scene) -> Iterator[str]:
    """Yield a line a deployment and a line a node, each with the time."""
    at = words.clock(scene.at)
    if scene.problem:
        yield f"{at} {scene.problem}"
    for item in scene.deployments:
        yield f"{at} {item.name}: {', '.join(_facts(item, scene.at))}"
    for node in scene.nodes:
        yield f"{at} {node.name}: {_machine(node)}"


def _facts(item: WatchedDeployment, now: datetime) -> Iterator[str]:
    figures = item.figures
    if item.life.is_gone:
        since = f" since {words.clock(item.since)}" if item.since is not None else ""
        yield f"gone: {item.told}{since}"
        if item.last_error:
            yield item.last_error
        return
    yield item.told
    if item.up_since is not None:
        yield f"up {words.ago(item.up_since, now)}"
    yield f"{words.rate(figures.tokens_per_s)} tokens/s"
    yield f"{words.number(figures.running)} running"
    yield f"{words.number(figures.waiting)} waiting"
    yield f"first token {words.pair(figures.first_token).replace(',', '')}"
    yield f"gap {words.pair(figures.gap).replace(',', '')}"
    yield f"KV cache {words.percent(figures.kv_usage)}"
    if figures.accepted:
        yield f"drafts accepted {words.percents(figures.accepted)}"
    if item.restarts:
        yield f"restarts {item.restarts}"


def _machine(node: WatchedNode) -> str:
    if node.gone_since is not None:
        return f"gone since {words.clock(node.gone_since)}: {node.problem}"
    told = f"{words.gib(node.available_bytes)} GiB available"
    return told if node.floor_bytes is None else f"{told}, floor {words.gib(node.floor_bytes)}"
