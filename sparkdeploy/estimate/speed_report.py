"""Speed in words and tables: the bytes of a step, more requests, longer contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.estimate.speed import CONTEXT_TOKENS, acceptance_lines, decode_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.estimate.speed import Acceptance, DecodeStep, Speed
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Cluster

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (1024, 4096, 16384, 32768, 65536, 131_072, 262_144)


def speed_lines(
    resolved: Resolved,
    facts: ModelFacts,
    acceptance: Mapping[str, Acceptance],
    speed: Speed,
    *,
    nodes: int = 1,
    longest_tokens: int = 0,
) -> Iterator[str]:
    """Yield the factor and where it comes from, one request's step by part, more requests and
    longer ones."""
    yield from factor_lines(speed)
    yield from acceptance_lines(resolved.recipe, acceptance)
    if nodes > 1:
        yield from _bound_lines(resolved.recipe.cluster)
    steps = [
        step
        for requests in BATCHES
        if (step := decode_step(resolved, facts, acceptance, requests=requests)) is not None
    ]
    if not steps:
        yield "  no estimate: the bytes of a step, or what its drafter gains, are not known"
        return
    yield from _step_lines(steps[0], speed)
    yield f"  {'requests':>10}{'GB a step':>11}{'ms':>8}{'tok/s each':>12}{'tok/s all':>11}"
    for step in steps:
        together = speed.tokens_per_second(step)
        yield _figures(step, speed) + f"{together / step.requests:>12.1f}{together:>11.1f}"
    yield f"  {'context':>10}{'GB a step':>11}{'ms':>8}{'tok/s':>12}"
    for context in sorted({it for it in CONTEXTS if it < longest_tokens} | {longest_tokens} - {0}):
        longer = decode_step(resolved, facts, acceptance, context_tokens=context)
        if longer is not None:
            tok_s = f"{speed.tokens_per_second(longer):>12.1f}"
            yield _figures(longer, speed, context) + tok_s


def factor_lines(speed: Speed) -> Iterator[str]:
    hardware = speed.hardware
    rate = f"{hardware.bandwidth_bytes_s / 1e9:,.0f} GB/s"
    yield f"speed on {hardware.title}: {rate} ({hardware.source})"
    if speed.fitted_to is None:
        yield "  no recipe was measured here: these are upper bounds at the full bandwidth"
    else:
        yield (
            f"  {speed.efficiency:.1%} of it is reached: the one factor, fitted to "
            f"{speed.fitted_to} and to nothing else"
        )
    yield f"  {CONTEXT_TOKENS:,} tokens of context; experts are chosen independently"


def node_lines(cluster: Cluster, nodes: int) -> Iterator[str]:
    """Yield how a model is divided, before figures that are one node's."""
    yield (
        f"  on {nodes} nodes with one GPU each: tensor {cluster.tensor_parallel} x pipeline "
        f"{cluster.pipeline_parallel} x data {cluster.data_parallel}"
    )
    yield "  weights, KV cache and room are those of the node that holds most"
    if cluster.data_parallel > 1:
        yield f"  each of the {cluster.data_parallel} copies of the model serves as many requests"


def _bound_lines(cluster: Cluster) -> Iterator[str]:
    """Yield how the bytes of several nodes are counted, and what the speed leaves out."""
    yield "  upper bounds: how long the nodes take to exchange results is not known, and left out"
    if cluster.pipeline_parallel > 1:
        yield "  pipeline stages read one after another: the bytes are those of all stages"
    if cluster.data_parallel > 1:
        yield f"  each of the {cluster.data_parallel} copies of the model reaches this speed"


def _step_lines(step: DecodeStep, speed: Speed) -> Iterator[str]:
    yield "bytes moved in a step of one request"
    for part, size in step.parts.items():
        yield f"  {part.value:<26}{size / 1e9:>8.2f} GB{size / step.total_bytes:>7.0%}"
    yield (
        f"  {'together':<26}{step.total_bytes / 1e9:>8.2f} GB, "
        f"{1000 * speed.duration_s(step):.1f} ms for {step.tokens_per_request:.3g} tokens"
    )


def _figures(step: DecodeStep, speed: Speed, first: int | None = None) -> str:
    size, duration_ms = step.total_bytes / 1e9, 1000 * speed.duration_s(step)
    return f"  {first or step.requests:>10,}{size:>11.2f}{duration_ms:>8.1f}"


def speed_as_dict(
    resolved: Resolved, facts: ModelFacts, acceptance: Mapping[str, Acceptance], speed: Speed
) -> dict[str, Any]:
    """Return the factor and the steps as plain values for `--json`."""
    steps = [decode_step(resolved, facts, acceptance, requests=count) for count in BATCHES]
    known = [step for step in steps if step is not None]
    return {
        "hardware": speed.hardware.name,
        "bandwidth_bytes_s": speed.hardware.bandwidth_bytes_s,
        "efficiency": speed.efficiency,
        "fitted_to": speed.fitted_to,
        "bytes": {str(part): size for part, size in known[0].parts.items()} if known else None,
        "tokens_per_step": known[0].tokens_per_request if known else None,
        "batches": [
            {
                "requests": step.requests,
                "step_bytes": step.total_bytes,
                "step_s": speed.duration_s(step),
                "tok_s": speed.tokens_per_second(step),
            }
            for step in known
        ],
    }
