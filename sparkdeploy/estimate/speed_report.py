"""Speed in words and tables: bytes of a step, estimates beside published figures, what is next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.estimate.decode import CONTEXT_TOKENS, DecodeStep, StepPart, decode_step
from sparkdeploy.estimate.speed import miss_reasons
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.estimate.acceptance import Acceptance
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.estimate.speed import Speed, SpeedEstimate
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Cluster
    from sparkdeploy.terminal.tables import Block, TextRow

BATCHES = (1, 2, 4, 8, 16, 32)
NOTABLE_BYTES = 10_000_000
"""Smaller differences between two steps are not worth a word."""


def speed_lines(speed: Speed) -> Iterator[str]:
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


def unknown_lines(cluster: Cluster) -> Iterator[str]:
    """Yield how the bytes of several nodes are counted, and what the speed leaves out."""
    yield "  upper bounds: how long the nodes take to exchange results is not known, and left out"
    if cluster.tensor_parallel > 1:
        yield "  tensor parallel nodes read their shares of a layer at the same time"
    if cluster.pipeline_parallel > 1:
        yield "  pipeline stages read one after another: the bytes are those of all stages"
    if cluster.data_parallel > 1:
        yield f"  each of the {cluster.data_parallel} copies of the model reaches this speed"


def step_lines(step: DecodeStep, speed: Speed) -> Iterator[str]:
    yield "bytes moved in a step of one request"
    for part, size in step.parts.items():
        yield f"  {part.value:<26}{size / 1e9:>8.2f} GB{size / step.total_bytes:>7.0%}"
    yield (
        f"  {'together':<26}{step.total_bytes / 1e9:>8.2f} GB, "
        f"{1000 * speed.duration_s(step):.1f} ms for {step.tokens_per_request:.3g} tokens"
    )


def batch_lines(steps: Sequence[DecodeStep], speed: Speed) -> Iterator[str]:
    yield f"  {'requests':>10}{'GB a step':>11}{'ms':>8}{'tok/s each':>12}{'tok/s all':>11}"
    for step in steps:
        together = speed.tokens_per_second(step)
        yield (
            f"  {step.requests:>10}{step.total_bytes / 1e9:>11.2f}"
            f"{1000 * speed.duration_s(step):>8.1f}"
            f"{together / step.requests:>12.1f}{together:>11.1f}"
        )


def estimate_lines(estimates: Sequence[SpeedEstimate], speed: Speed) -> Iterator[Block]:
    """Yield every recipe's estimate beside the published figure, and why they differ."""
    yield "every recipe, one request"
    figures = ("GB a step", "tok/step", "estimate", "published", "off by")
    columns = (TextColumn("recipe"), *(TextColumn(title, Fill.FIGURE) for title in figures))
    rows = tuple(map(_estimate_row, estimates))
    yield TextTable((*columns, TextColumn("by a parent")), rows, indent=2)
    # Published figures are a Spark's; on another machine a difference to them means nothing.
    if speed.fitted_to is None:
        return
    if any(made.from_published for made in estimates):
        yield "  N by PARENT: its published step less the time of the bytes saved; not measured"
    for made in estimates:
        for reason in miss_reasons(made):
            yield f"  {made.name}: {reason}"


def _estimate_row(made: SpeedEstimate) -> TextRow:
    published = f"{made.published_tok_s:g}" if made.published_tok_s is not None else "-"
    if made.step is None or made.tok_s is None:
        return row_of(made.name, "-", "-", "-", published, "", "")
    found = made.from_published
    return row_of(
        made.name,
        f"{made.step.total_bytes / 1e9:.2f}",
        f"{made.step.tokens_per_request:.2f}",
        f"{made.tok_s:.1f}",
        published,
        f"{made.miss:+.1%}" if made.miss is not None and found is None else "",
        f"{found.tok_s:.1f} by {found.parent}" if found is not None else "",
    )


def next_lines(
    name: str,
    recipes: Mapping[str, Resolved],
    facts: ModelFacts,
    acceptance: Mapping[str, Acceptance],
) -> Iterator[str]:
    """Yield what each recipe that extends this one, for the same model, would save by part."""
    before = decode_step(recipes[name], facts, acceptance)
    if before is None:
        return
    model = recipes[name].recipe.model.known_as
    for other, resolved in sorted(recipes.items()):
        if resolved.recipe.extends != name or resolved.recipe.model.known_as != model:
            continue
        after = decode_step(resolved, facts, acceptance)
        if after is not None:
            yield f"{name} -> {other}: {', '.join(_differences(before, after)) or 'the same bytes'}"


def _differences(before: DecodeStep, after: DecodeStep) -> Iterator[str]:
    if before.tokens_per_request != after.tokens_per_request:
        yield f"{before.tokens_per_request:.3g} -> {after.tokens_per_request:.3g} tokens a step"
    for part in StepPart:
        old, new = before.parts.get(part, 0.0), after.parts.get(part, 0.0)
        if abs(new - old) >= NOTABLE_BYTES:
            yield f"{part.value} {old / 1e9:.2f} -> {new / 1e9:.2f} GB"
    old, new = (step.total_bytes / step.tokens_per_request for step in (before, after))
    if abs(new - old) >= NOTABLE_BYTES:
        yield f"{(new - old) / 1e9:+.2f} GB a token"


def estimates_as_dict(
    estimates: Sequence[SpeedEstimate], speed: Speed, steps: Sequence[DecodeStep]
) -> dict[str, Any]:
    return {
        "hardware": speed.hardware.name,
        "bandwidth_bytes_s": speed.hardware.bandwidth_bytes_s,
        "efficiency": speed.efficiency,
        "fitted_to": speed.fitted_to,
        "batches": [
            {
                "requests": step.requests,
                "step_bytes": step.total_bytes,
                "step_s": speed.duration_s(step),
                "tok_s": speed.tokens_per_second(step),
            }
            for step in steps
        ],
        "recipes": [
            {
                "recipe": made.name,
                "bytes": {str(part): size for part, size in made.step.parts.items()}
                if made.step is not None
                else None,
                "tokens_per_step": made.step.tokens_per_request if made.step is not None else None,
                "estimate_tok_s": made.tok_s,
                "published_tok_s": made.published_tok_s,
                "from_published": {
                    "recipe": made.from_published.parent,
                    "tok_s": made.from_published.tok_s,
                }
                if made.from_published is not None
                else None,
                "reasons": list(miss_reasons(made)) if speed.fitted_to is not None else [],
            }
            for made in estimates
        ],
    }


def batch_steps(
    resolved: Resolved, facts: ModelFacts, acceptance: Mapping[str, Acceptance]
) -> list[DecodeStep]:
    """Return the recipe's step for 1 to 32 requests; none when it cannot be estimated."""
    steps = (decode_step(resolved, facts, acceptance, requests=requests) for requests in BATCHES)
    return [step for step in steps if step is not None]
