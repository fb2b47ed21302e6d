"""An estimate in words and tables: the memory of a deployment, and the bytes of a decode step."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sparkdeploy.checkpoint.layers import Architecture
from sparkdeploy.estimate.kv_cache import CacheLayout
from sparkdeploy.estimate.memory import GIB, Budget, budget_warnings
from sparkdeploy.estimate.model import ModelFacts, WeightKind
from sparkdeploy.estimate.speed import (
    CONTEXT_TOKENS,
    Acceptance,
    DecodeStep,
    Speed,
    acceptance_lines,
    decode_step,
    launches_line,
)
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.schema import Checkpoint, Cluster
from sparkdeploy.recipe.weights import Fp8Dense
from sparkdeploy.terminal.style import Piece, Style, line_of
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_gib

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (1024, 4096, 16384, 32768, 65536, 131_072, 262_144)


def memory_lines(resolved: Resolved, facts: ModelFacts, budget: Budget) -> Iterator[Block]:
    yield from _weight_lines(facts, budget)
    yield f"memory of {budget.hardware.title}: {format_gib(budget.hardware.memory_bytes)}"
    yield memory_table(budget)
    if budget.layout is None:
        yield "KV cache"
        yield f"  not known: {budget.unknown}" if budget.unknown else "  this model keeps none"
    else:
        yield from _cache_lines(resolved, facts, budget, budget.layout)
    for warning in budget_warnings(budget):
        yield line_of("  ", Piece("!", Style.CAUTION), f" {warning}")


def memory_as_dict(resolved: Resolved, facts: ModelFacts, budget: Budget) -> dict[str, Any]:
    return {
        "model": facts.repo,
        "facts": facts.origin,
        "hardware": budget.hardware.name,
        "memory_bytes": budget.hardware.memory_bytes,
        "utilization": budget.utilization,
        "stored_bytes": {str(kind): size for kind, size in facts.weight_bytes.items()},
        "loaded_bytes": {str(kind): size for kind, size in budget.loaded.items()},
        "reserves": [
            {"name": item.name, "bytes": item.size_bytes, "source": item.source}
            for item in budget.reserves
        ],
        "available_kv_bytes": budget.available_bytes,
        "machine_bytes": budget.machine_bytes,
        **_layout_as_dict(resolved, budget),
        "contexts": [
            {
                "tokens": row.context_tokens,
                "requests": int(row.concurrency),
                "concurrency": row.concurrency,
                "tokens_held": row.tokens,
            }
            for row in budget.rows()
        ],
        "warnings": list(budget_warnings(budget)),
        "not_known": budget.unknown or None,
    }


def _layout_as_dict(resolved: Resolved, budget: Budget) -> dict[str, Any]:
    layout, longest = budget.layout, budget.max_model_len
    if layout is None:
        return {}
    # Without a context there is no request to count in.
    logged = (
        layout.logged_tokens(budget.available_bytes, longest, resolved.engine.vllm)
        if longest
        else None
    )
    return {
        "block_tokens": layout.block_tokens,
        "groups": len(layout.groups),
        "kv_bytes_per_token": layout.bytes_per_token,
        "state_bytes_per_request": layout.request_state_bytes,
        "logged_tokens": logged,
    }


def _weight_lines(facts: ModelFacts, budget: Budget) -> Iterator[str]:
    yield f"weights ({facts.origin})"
    yield f"  {'':<26}{'stored':>12}{'in memory':>12}"
    stored, loaded = facts.weight_bytes, budget.loaded
    kinds = [kind for kind in WeightKind if kind in stored or kind in loaded]
    rows = [(kind.value, stored.get(kind, 0), loaded.get(kind, 0)) for kind in kinds]
    for name, on_disk, in_memory in (*rows, ("together", facts.total_bytes, budget.weight_bytes)):
        yield f"  {name:<26}{format_gib(on_disk):>12}{format_gib(in_memory):>12}"


def memory_table(budget: Budget, files: str = "") -> TextTable:
    """Return what becomes of the memory; with `files`, their size, without each one's source."""
    reserves = [(-it.size_bytes, f"{it.name} ({it.source})") for it in budget.reserves]
    if files:
        reserves = [(sum(size for size, _ in reserves), "activations, CUDA and its graphs")]
    rows = [
        (budget.claim_bytes, f"for vLLM, {budget.utilization:g} of it"),
        (-budget.weight_bytes, f"weights ({files} of files)" if files else "weights"),
        *reserves,
        (budget.available_bytes, "left for the KV cache"),
    ]
    if budget.hardware.shares_memory:
        floor = f"'s own processes; the memory floor is {budget.floor_bytes / GIB:g} GiB"
        rows.append(
            (budget.machine_bytes, f"left for the machine beside vLLM{'' if files else floor}")
        )
    columns = (TextColumn("", Fill.FIGURE), TextColumn("", Fill.WORDS))
    return TextTable(columns, tuple(row_of(format_gib(size), what) for size, what in rows), 4)


def _cache_lines(
    resolved: Resolved, facts: ModelFacts, budget: Budget, layout: CacheLayout
) -> Iterator[Block]:
    speculative = resolved.recipe.serve.speculative
    yield f"KV cache, {resolved.recipe.serve.kv_cache_dtype}"
    yield f"  {'; '.join(_what_is_kept(facts, layout))}"
    yield f"  {'context':>10}{'requests at once':>18}{'tokens held':>14}"
    for row in budget.rows():
        yield f"  {row.context_tokens:>10,}{row.concurrency:>18.2f}{row.tokens:>14,}"
    if speculative is not None and speculative.model and facts.drafter is None:
        yield "  the drafter is a model of its own: its weights and cache are not counted here"
    length, vllm = budget.max_model_len, resolved.engine.vllm
    if length:
        logged = layout.logged_tokens(budget.available_bytes, length, vllm)
        concurrency = layout.concurrency(budget.available_bytes, length)
        yield (
            f"  vLLM {vllm} will log: GPU KV cache size: {logged:,} tokens; Maximum concurrency "
            f"for {length:,} tokens per request: {concurrency:.2f}x"
        )


def _what_is_kept(facts: ModelFacts, layout: CacheLayout) -> Iterator[str]:
    """Yield what grows with a request, what is a window of it, and what is a state."""
    if layout.growing_layers:
        count = f"{layout.growing_layers} full-attention layers"
        yield f"{layout.bytes_per_token:,} bytes a token in {count}"
    windows = [it for it in layout.groups if it.cache.kind in {"window", "chunk"}]
    if windows:
        reach = max(it.cache.reach_tokens for it in windows)
        count = f"{sum(len(it.layers) for it in windows)} layers"
        yield f"{count} keep the last {reach:,} tokens and those of the running steps"
    state = facts.architecture.recurrent if facts.architecture is not None else None
    if layout.state_blocks and state is not None:
        size = layout.request_state_bytes / 2**20
        yield f"{size:.0f} MiB of {state.name} state a request, however long it is"


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
    steps = _steps(resolved, facts, acceptance)
    if not steps:
        yield "  no estimate: the bytes of a step, or what its drafter gains, are not known"
        return
    yield from _step_lines(steps[0], speed)
    yield from conversion_lines(resolved, facts, acceptance)
    if line := launches_line(resolved.recipe, facts, speed):
        yield line
    yield f"  {'requests':>10}{'GB a step':>11}{'ms':>8}{'tok/s each':>12}{'tok/s all':>11}"
    for step in steps:
        together = speed.tokens_per_second(step)
        figures = f"{together / step.requests:>12.1f}{together:>11.1f}"
        yield _figures(step, speed, step.requests) + figures
    yield f"  {'context':>10}{'GB a step':>11}{'ms':>8}{'tok/s':>12}"
    for context in sorted({it for it in CONTEXTS if it < longest_tokens} | {longest_tokens} - {0}):
        longer = decode_step(resolved, facts, acceptance, context_tokens=context)
        if longer is not None:
            tok_s = f"{speed.tokens_per_second(longer):>12.1f}"
            yield _figures(longer, speed, context) + tok_s


def _steps(
    resolved: Resolved, facts: ModelFacts, acceptance: Mapping[str, Acceptance]
) -> list[DecodeStep]:
    steps = (decode_step(resolved, facts, acceptance, requests=count) for count in BATCHES)
    return [step for step in steps if step is not None]


def factor_lines(speed: Speed) -> Iterator[str]:
    hardware = speed.hardware
    rate = f"{hardware.bandwidth_bytes_s / 1e9:,.0f} GB/s"
    yield f"speed on {hardware.title}: {rate} ({hardware.source})"
    if speed.origin is None:
        yield "  no recipe was measured here: these are upper bounds at the full bandwidth"
    else:
        layer = f"{1e6 * speed.layer_s:.0f} us a layer" if speed.layer_s else "nothing a layer"
        yield f"  {speed.bandwidth_share:.0%} of it is reached, and {layer} beside that: fitted to"
        yield f"  {speed.origin}"
    yield f"  {CONTEXT_TOKENS:,} tokens of context; experts are chosen independently"


def node_lines(cluster: Cluster, nodes: int) -> Iterator[str]:
    """Yield how a model is divided, before figures that are one node's."""
    yield (
        f"  on {nodes} nodes with one GPU each (--cluster): tensor {cluster.tensor_parallel} x "
        f"pipeline {cluster.pipeline_parallel} x data {cluster.data_parallel}"
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
        f"  {'together':<26}{step.total_bytes / 1e9:>8.2f} GB and {step.layers} layers, "
        f"{1000 * speed.duration_s(step):.1f} ms for {step.tokens_per_request:.3g} tokens"
    )


_CONVERSIONS: Mapping[str, tuple[str, object]] = {
    "fp8_dense": ("FP8 of dense layers", Fp8Dense()),
    "shared_experts": ("INT4 of shared experts", "bf16"),
    "lm_head": ("LM head", "bf16"),
    "draft_lm_head": ("draft vocabulary", None),
    "mtp_weights": ("INT4 and FP8 of the draft layer", "bf16"),
}


TOGETHER = "together"


def steps_without(
    resolved: Resolved, facts: ModelFacts, acceptance: Mapping[str, Acceptance]
) -> dict[str, DecodeStep]:
    """Return one request's step without each conversion of a recipe, the last without all."""
    checkpoint = resolved.recipe.checkpoint
    asked = [name for name, (_, off) in _CONVERSIONS.items() if getattr(checkpoint, name) != off]
    if checkpoint.fp8_dense.mode == "off" and "fp8_dense" in asked:
        asked.remove("fp8_dense")
    if checkpoint.fp8_dense.is_finished or not asked:
        return {}
    found: dict[str, DecodeStep] = {}
    for what, names in {
        **{_CONVERSIONS[name][0]: [name] for name in asked},
        TOGETHER: asked,
    }.items():
        plain = checkpoint.model_copy(update={name: _CONVERSIONS[name][1] for name in names})
        recipe = resolved.recipe.model_copy(update={"checkpoint": plain})
        before = decode_step(replace(resolved, recipe=recipe), facts, acceptance)
        if before is not None:
            found[what] = before
    return found


def conversion_lines(
    resolved: Resolved, facts: ModelFacts, acceptance: Mapping[str, Acceptance]
) -> Iterator[str]:
    """Yield the bytes of a step without each conversion and with it, and without all of them."""
    after, found = (
        decode_step(resolved, facts, acceptance),
        steps_without(resolved, facts, acceptance),
    )
    if after is None or not found:
        return
    yield "bytes of that step without what the plugin converts, and with it"
    for what, before in found.items():
        size = f"{before.total_bytes / 1e9:>8.2f} -> {after.total_bytes / 1e9:.2f} GB"
        parts = [it.value for it in before.parts if before.parts[it] != after.parts.get(it)]
        yield f"  {what:<32}{size}  {', '.join(parts)}".rstrip()


def treated_lines(
    checkpoint: Checkpoint, layers: Architecture | None, dense_bytes: Mapping[str, int]
) -> Iterator[str]:
    """Yield which dense layers become FP8 and what drafts read of the head, with their bytes."""
    if dense_bytes:
        size = sum(dense_bytes.values()) / 1e9
        yield f"FP8 while loading: {', '.join(dense_bytes)}: {size:.2f} -> {size / 2:.2f} GB a step"
    draft = checkpoint.draft_lm_head
    if draft is not None and layers is not None:
        whole = {"bf16": 2.0, "int8": 1.0, "int4": 0.5}[checkpoint.lm_head]
        width, rows = layers.hidden_size, layers.vocab_size
        sizes = f"{whole * rows * width / 1e9:.2f} -> {draft.rows * (width + 4) / 1e9:.2f} GB"
        yield f"drafts from {draft.rows:,} of {rows:,} tokens: {sizes} of LM head for each draft"


def _figures(step: DecodeStep, speed: Speed, first: int) -> str:
    size, duration_ms = step.total_bytes / 1e9, 1000 * speed.duration_s(step)
    return f"  {first:>10,}{size:>11.2f}{duration_ms:>8.1f}"


def speed_as_dict(
    resolved: Resolved, facts: ModelFacts, acceptance: Mapping[str, Acceptance], speed: Speed
) -> dict[str, Any]:
    """Return the factor and the steps as plain values for `--json`."""
    steps = _steps(resolved, facts, acceptance)
    return {
        "hardware": speed.hardware.name,
        "bandwidth_bytes_s": speed.hardware.bandwidth_bytes_s,
        "bandwidth_share": speed.bandwidth_share,
        "layer_s": speed.layer_s,
        "fitted_to": speed.origin,
        "bytes": {str(part): size for part, size in steps[0].parts.items()} if steps else None,
        "step_bytes_without": {
            what: step.total_bytes
            for what, step in steps_without(resolved, facts, acceptance).items()
        },
        "tokens_per_step": steps[0].tokens_per_request if steps else None,
        "batches": [
            {
                "requests": step.requests,
                "step_bytes": step.total_bytes,
                "step_s": speed.duration_s(step),
                "tok_s": speed.tokens_per_second(step),
            }
            for step in steps
        ],
    }
