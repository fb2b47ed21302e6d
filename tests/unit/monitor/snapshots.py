"""Scenes with the longest figures there are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sparkdeploy.monitor.snapshot import (
    DeploymentState,
    NodeSample,
    Percentiles,
    ServerFigures,
    WatchedDeployment,
    WatchSnapshot,
)
from sparkdeploy.node.facts import GpuLoad

NOW = datetime(2026, 11, 25, 12, 0, 0, tzinfo=UTC)
FIGURES = ServerFigures(
    tokens_per_s=1234.5,
    rates=tuple(float(number % 60) for number in range(240)),
    running=256,
    waiting=1024,
    requests_a_minute=12345,
    first_token=Percentiles(12.345, 99.99),
    gap=Percentiles(0.0191, 0.9994),
    accepted=tuple(1 - number / 12 for number in range(12)),
    prefix_hits=1.0,
    kv_usage=1.0,
    preemptions=12345,
    preempted_lately=1234,
    generated_tokens=1_234_567_890,
    prompt_tokens=12_345_678_901,
)
EXPECTED = (
    *("1,234 tokens/s", "requests 256 running, 1,024 waiting   12,345 a minute"),
    *("first token p50 12.35 s, p95 99.99 s", "gap p50 19 ms, p95 999 ms"),
    *("drafts accepted 100 92 83 75 67 58 50 42 33 25 17 8 %", "prefix hits 100 %"),
    *("KV cache 100 %", "preemptions 12,345, 1,234 in the last minute"),
    *("served 1,234,567,890 tokens written, 12,345,678,901 read", "restarts 3", "up 3d04h"),
)


def deployment(
    name: str = "main",
    life: DeploymentState = DeploymentState.SERVING,
    told: str = "serving",
    last_error: str = "",
) -> WatchedDeployment:
    return WatchedDeployment(
        name=name,
        recipe="v2",
        model="Qwen/Qwen3.5-122B-A10B-Instruct-with-a-name-that-does-not-end",
        url="http://127.0.0.1:65535",
        life=life,
        state=told,
        gone_since=NOW - timedelta(seconds=34) if life.is_gone else None,
        up_since=NOW - timedelta(days=3, hours=4),
        restarts=3,
        last_error=last_error,
        figures=FIGURES,
    )


def node(name: str = "spark-1", *, is_gone: bool = False, available_gib: int = 31) -> NodeSample:
    return NodeSample(
        name=name,
        available_bytes=available_gib << 30,
        total_bytes=122 << 30,
        floor_bytes=4 << 30,
        gpu=GpuLoad(sm_clock_mhz=2411.0, temperature_c=63.0, power_w=61.4),
        gone_since=NOW - timedelta(minutes=2) if is_gone else None,
        problem="ssh to 192.168.177.12: it did not answer" if is_gone else "",
    )


NODE = "31.0 of 122.0 GiB available, floor 4.0   61 W   2411 MHz   63 °C"


def snapshot(deployments: int = 1, nodes: int = 1) -> WatchSnapshot:
    names = [f"deployment-{number}" for number in range(deployments)]
    return WatchSnapshot(
        NOW,
        tuple(deployment(name) for name in names),
        tuple(node(f"spark-{number}") for number in range(nodes)),
    )
