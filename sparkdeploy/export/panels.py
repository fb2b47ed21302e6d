"""What the dashboard shows, in its order."""

from __future__ import annotations

from dataclasses import dataclass

CHOSEN = '{deployment=~"$deployment"}'


@dataclass(frozen=True, slots=True)
class Curve:
    expression: str
    legend: str = "{{deployment}}"


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    """As Grafana calls it."""
    curves: tuple[Curve, ...]
    description: str = ""
    kind: str = "timeseries"


def _recorded(rule: str, legend: str = "{{deployment}}") -> Curve:
    return Curve(f"{rule}{CHOSEN}", legend)


def _now(metric: str, legend: str, how: str = "sum") -> Curve:
    return Curve(f"{how} by (deployment) ({metric}{CHOSEN})", legend)


def _today(metric: str, legend: str) -> Curve:
    return Curve(f"sum by (deployment) (increase({metric}{CHOSEN}[1d]))", legend)


PANELS = (
    Panel(
        "Tokens a second",
        "short",
        (
            _recorded("deployment:generated_tokens:rate1m", "{{deployment}} written"),
            _recorded("deployment:prompt_tokens:rate1m", "{{deployment}} read"),
        ),
    ),
    Panel(
        "Requests",
        "short",
        (
            _now("vllm:num_requests_running", "{{deployment}} running"),
            _now("vllm:num_requests_waiting", "{{deployment}} waiting"),
        ),
    ),
    Panel(
        "KV cache in use",
        "percentunit",
        (_now("vllm:kv_cache_usage_perc", "{{deployment}}", "max"),),
    ),
    Panel(
        "Time to the first token",
        "s",
        (
            _recorded("deployment:first_token_seconds:p50_5m", "{{deployment}} p50"),
            _recorded("deployment:first_token_seconds:p95_5m", "{{deployment}} p95"),
        ),
    ),
    Panel(
        "Time between tokens",
        "s",
        (
            _recorded("deployment:gap_seconds:p50_5m", "{{deployment}} p50"),
            _recorded("deployment:gap_seconds:p95_5m", "{{deployment}} p95"),
        ),
    ),
    Panel(
        "Goodput",
        "reqps",
        (
            _recorded("deployment:goodput:rate5m", "{{deployment}} in time"),
            _recorded("deployment:requests:rate5m", "{{deployment}} all"),
        ),
        "In time: first token within 2.5 s, and tokens 0.1 s apart on average. At most so many: "
        "vLLM counts each of the two limits, not both together.",
    ),
    Panel(
        "Drafts accepted",
        "percentunit",
        (
            _recorded("deployment:draft_acceptance:ratio5m", "{{deployment}} all"),
            _recorded(
                "deployment_position:draft_acceptance:ratio5m", "{{deployment}} {{position}}"
            ),
        ),
        "Of all drafted tokens, and of the drafts by position.",
    ),
    Panel(
        "Tokens a step",
        "short",
        (_recorded("deployment:accepted_length:mean5m"),),
        "Accepted drafts and the token that the model adds.",
    ),
    Panel("Prefix cache hits", "percentunit", (_recorded("deployment:prefix_hits:ratio5m"),)),
    Panel(
        "Fastest minute of the day",
        "short",
        (Curve(f"max_over_time(deployment:generated_tokens:rate1m{CHOSEN}[1d])"),),
        "Written tokens a second.",
        "stat",
    ),
    Panel(
        "In 24 hours",
        "short",
        (
            _today("vllm:generation_tokens_total", "{{deployment}} tokens written"),
            _today("vllm:prompt_tokens_total", "{{deployment}} tokens read"),
            _today("vllm:request_success_total", "{{deployment}} requests"),
            _today("vllm:num_preemptions_total", "{{deployment}} preemptions"),
        ),
        kind="stat",
    ),
    Panel(
        "Answers",
        "short",
        (Curve(f"up{CHOSEN}"),),
        "1: its /metrics answers. An engine that hangs may still answer.",
        "stat",
    ),
    Panel(
        "Memory",
        "bytes",
        (
            Curve("node_memory_MemAvailable_bytes", "available"),
            Curve("node_memory_MemTotal_bytes", "in all"),
            Curve("node_memory_SwapTotal_bytes - node_memory_SwapFree_bytes", "in swap"),
        ),
        "Of the machine, which a Spark's GPU shares.",
    ),
    Panel("Power", "watt", (Curve("sparkdeploy_gpu_power_watts", "GPU {{gpu}}"),)),
    Panel(
        "Clock and temperature",
        "short",
        (
            Curve("sparkdeploy_gpu_clock_megahertz", "GPU {{gpu}} MHz"),
            Curve("sparkdeploy_gpu_temperature_celsius", "GPU {{gpu}} degrees"),
        ),
        "A clock that stays low under load is a fault of the machine.",
    ),
)
