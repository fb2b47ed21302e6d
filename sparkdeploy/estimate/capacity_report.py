"""A memory budget in words and tables, and what vLLM's own log line will say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.console import format_gib
from sparkdeploy.estimate.budget import Budget, budget_warnings, layout_of
from sparkdeploy.estimate.memory_claim import GIB
from sparkdeploy.recipe.features import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.estimate.kv_cache import CacheLayout
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved

ONE_LINE_SINCE = (0, 28, 0)
FORMATS = {
    "auto": "BF16",
    "fp8": "8-bit floats",
    "turboquant_k8v4": "perplexity +1.17 %",
    "turboquant_4bit_nc": "perplexity +2.71 %",
    "turboquant_k3v4_nc": "perplexity +10.63 %",
    "turboquant_3bit_nc": "perplexity +20.59 %",
}
"""Perplexity: vLLM's own documentation in quantization/turboquant/config.py (0.25.1, 0.33)."""


def capacity_lines(resolved: Resolved, facts: ModelFacts, budget: Budget) -> Iterator[str]:
    """Yield weights, memory, KV cache and the explanation of vLLM's number."""
    yield from _weight_lines(facts, budget)
    yield from _memory_lines(budget)
    yield from _cache_lines(resolved, budget)
    yield from _format_lines(resolved, facts, budget)
    yield from _log_lines(resolved, budget)
    for warning in budget_warnings(budget):
        yield f"  ! {warning}"


def capacity_as_dict(resolved: Resolved, facts: ModelFacts, budget: Budget) -> dict[str, Any]:
    """Return the budget as plain values for `--json`; sizes in bytes."""
    layout, available = budget.layout, budget.available_bytes
    vllm = resolved.engine.vllm
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
        "available_kv_bytes": available,
        "machine_bytes": budget.machine_bytes,
        "block_tokens": layout.block_tokens,
        "groups": layout.groups,
        "kv_bytes_per_token": layout.token_bytes * layout.attention_layers,
        "state_bytes_per_request": _request_state_bytes(layout),
        "logged_tokens": layout.logged_tokens(available, budget.max_model_len, vllm),
        "contexts": [
            {
                "tokens": row.context_tokens,
                "requests": row.requests,
                "concurrency": row.concurrency,
                "tokens_held": row.tokens,
            }
            for row in budget.rows()
        ],
        "warnings": list(budget_warnings(budget)),
    }


def _weight_lines(facts: ModelFacts, budget: Budget) -> Iterator[str]:
    yield f"weights ({facts.origin})"
    yield f"  {'':<26}{'stored':>12}{'in memory':>12}"
    for kind, size in facts.weight_bytes.items():
        loaded = budget.loaded.get(kind, 0)
        yield f"  {kind.value:<26}{format_gib(size):>12}{format_gib(loaded):>12}"
    stored, in_memory = format_gib(facts.total_bytes), format_gib(budget.weight_bytes)
    yield f"  {'together':<26}{stored:>12}{in_memory:>12}"


def _memory_lines(budget: Budget) -> Iterator[str]:
    yield f"memory of {budget.hardware.title}: {format_gib(budget.hardware.memory_bytes)}"
    yield f"  {format_gib(budget.claim_bytes):>10}  for vLLM, {budget.utilization:g} of it"
    yield f"  {format_gib(-budget.weight_bytes):>10}  weights"
    for item in budget.reserves:
        yield f"  {format_gib(-item.size_bytes):>10}  {item.name} ({item.source})"
    yield f"  {format_gib(budget.available_bytes):>10}  left for the KV cache"
    if not budget.hardware.shares_memory:
        return
    yield (
        f"  {format_gib(budget.machine_bytes):>10}  left for the machine beside vLLM's own "
        f"processes; the memory floor is {budget.floor_bytes / GIB:g} GiB"
    )


def _cache_lines(resolved: Resolved, budget: Budget) -> Iterator[str]:
    layout = budget.layout
    per_token = layout.token_bytes * layout.attention_layers
    state = _request_state_bytes(layout)
    yield f"KV cache, {resolved.recipe.serve.kv_cache_dtype}"
    yield (
        f"  {per_token:,} bytes a token in {layout.attention_layers} full-attention layers, and "
        f"{state / 2**20:.0f} MiB of Gated DeltaNet state a request, however long it is"
    )
    yield f"  {'context':>10}{'requests at once':>18}{'tokens held':>14}"
    for row in budget.rows():
        yield f"  {row.context_tokens:>10,}{row.concurrency:>18.2f}{row.tokens:>14,}"
    if resolved.recipe.serve.speculative is not None and resolved.recipe.serve.speculative.model:
        yield "  the drafter is a model of its own: its weights and cache are not counted here"


def _format_lines(resolved: Resolved, facts: ModelFacts, budget: Budget) -> Iterator[str]:
    length = budget.max_model_len
    yield f"  the same memory in other formats, for requests of {length:,} tokens:"
    for name, quality in FORMATS.items():
        layout = layout_of(_with_format(resolved, name), facts)
        per_token = layout.token_bytes * layout.attention_layers
        held = layout.tokens(budget.available_bytes, length)
        yield f"  {name:<20}{per_token:>8,} bytes a token{held:>12,} tokens  {quality}"


def _log_lines(resolved: Resolved, budget: Budget) -> Iterator[str]:
    layout, length, vllm = budget.layout, budget.max_model_len, resolved.engine.vllm
    available = budget.available_bytes
    blocks, request = layout.blocks(available), layout.blocks_per_request(length)
    state = layout.state_groups * layout.states_per_request
    tokens = f"{layout.logged_tokens(available, length, vllm):,}"
    concurrency = f"{layout.concurrency(available, length):.2f}x"
    yield f"what vLLM {vllm} will log"
    size = f"GPU KV cache size: {tokens} tokens"
    most = f"Maximum concurrency for {length:,} tokens per request: {concurrency}"
    if parse_version(vllm) >= ONE_LINE_SINCE:
        yield f"  {size}, {most}"
    else:
        yield f"  {size}"
        yield f"  {most}"
    yield (
        f"  {layout.groups} groups of up to {layout.group_layers} layers share one pool of "
        f"{blocks:,} blocks; a block is {layout.block_tokens:,} tokens, which take as much as one "
        "DeltaNet state."
    )
    yield (
        f"  A request of {length:,} tokens takes {request - state} blocks of KV cache and {state} "
        f"of state, so {blocks:,} / {request} = {concurrency}."
    )
    old = layout.logged_tokens(available, length, "0.19.1")
    yield (
        f"  Up to 0.19 the log divided by the groups: {blocks:,} // {layout.groups} x "
        f"{layout.block_tokens:,} = {old:,} tokens, as if all of them grew with the context."
    )
    yield (
        "  From 0.20 on it is concurrency x max_model_len; from 0.28 on both stand in one line. "
        "The pool is the same, so compare the concurrency."
    )


def _request_state_bytes(layout: CacheLayout) -> int:
    """The pages a request's states occupy: groups x states x layers of a group."""
    pages = layout.state_groups * layout.states_per_request * layout.group_layers
    return pages * layout.page_bytes


def _with_format(resolved: Resolved, kv_dtype: str) -> Resolved:
    serve = resolved.recipe.serve.model_copy(update={"kv_cache_dtype": kv_dtype})
    return replace(resolved, recipe=resolved.recipe.model_copy(update={"serve": serve}))
