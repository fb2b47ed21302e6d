"""The memory of a deployment in words and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint.family.kinds import WeightKind
from sparkdeploy.estimate.capacity import budget_warnings
from sparkdeploy.estimate.layout import layout_of
from sparkdeploy.estimate.memory_claim import GIB
from sparkdeploy.recipe.features import parse_version
from sparkdeploy.terminal.style import Piece, Style, line_of
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.estimate.capacity import Budget
    from sparkdeploy.estimate.kv_cache import CacheLayout
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.terminal.tables import Block

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


def capacity_lines(resolved: Resolved, facts: ModelFacts, budget: Budget) -> Iterator[Block]:
    yield from _weight_lines(facts, budget)
    yield f"memory of {budget.hardware.title}: {format_gib(budget.hardware.memory_bytes)}"
    yield _memory_table(budget)
    layout = budget.layout
    if layout is None:
        yield "KV cache"
        yield f"  not known: {budget.unknown}" if budget.unknown else "  this model keeps none"
    else:
        yield from _cache_lines(resolved, facts, budget, layout)
        yield from _format_lines(resolved, facts, budget)
        yield from _log_lines(resolved, budget, layout)
    for warning in budget_warnings(budget):
        yield line_of("  ", Piece("!", Style.CAUTION), f" {warning}")


def capacity_as_dict(resolved: Resolved, facts: ModelFacts, budget: Budget) -> dict[str, Any]:
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
                "requests": row.requests,
                "concurrency": row.concurrency,
                "tokens_held": row.tokens,
            }
            for row in budget.rows()
        ],
        "warnings": list(budget_warnings(budget)),
        "not_known": budget.unknown or None,
    }


def _layout_as_dict(resolved: Resolved, budget: Budget) -> dict[str, Any]:
    layout, available = budget.layout, budget.available_bytes
    if layout is None:
        return {}
    longest, vllm = budget.max_model_len, resolved.engine.vllm
    return {
        "block_tokens": layout.block_tokens,
        "groups": len(layout.groups),
        "kv_bytes_per_token": layout.bytes_per_token,
        "state_bytes_per_request": layout.request_state_bytes,
        "logged_tokens": layout.logged_tokens(available, longest, vllm) if longest else None,
    }


def _weight_lines(facts: ModelFacts, budget: Budget) -> Iterator[str]:
    yield f"weights ({facts.origin})"
    yield f"  {'':<26}{'stored':>12}{'in memory':>12}"
    kinds = [kind for kind in WeightKind if kind in facts.weight_bytes or kind in budget.loaded]
    for kind in kinds:
        size, loaded = facts.weight_bytes.get(kind, 0), budget.loaded.get(kind, 0)
        yield f"  {kind.value:<26}{format_gib(size):>12}{format_gib(loaded):>12}"
    stored, in_memory = format_gib(facts.total_bytes), format_gib(budget.weight_bytes)
    yield f"  {'together':<26}{stored:>12}{in_memory:>12}"


def _memory_table(budget: Budget) -> TextTable:
    rows = [
        (budget.claim_bytes, f"for vLLM, {budget.utilization:g} of it"),
        (-budget.weight_bytes, "weights"),
        *((-item.size_bytes, f"{item.name} ({item.source})") for item in budget.reserves),
        (budget.available_bytes, "left for the KV cache"),
    ]
    if budget.hardware.shares_memory:
        beside = (
            "left for the machine beside vLLM's own processes; the memory floor is "
            f"{budget.floor_bytes / GIB:g} GiB"
        )
        rows.append((budget.machine_bytes, beside))
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


def _what_is_kept(facts: ModelFacts, layout: CacheLayout) -> Iterator[str]:
    """Yield what grows with a request, what is a window of it, and what is a state."""
    if layout.growing_layers:
        yield (
            f"{layout.bytes_per_token:,} bytes a token in {layout.growing_layers} "
            "full-attention layers"
        )
    windows = [it for it in layout.groups if it.cache.kind in {"window", "chunk"}]
    if windows:
        reach = max(it.cache.reach_tokens for it in windows)
        count = sum(len(it.layers) for it in windows)
        yield f"{count} layers keep the last {reach:,} tokens and those of the running steps"
    state = facts.architecture.recurrent if facts.architecture is not None else None
    if layout.state_blocks and state is not None:
        size = layout.request_state_bytes / 2**20
        yield f"{size:.0f} MiB of {state.name} state a request, however long it is"


def _format_lines(resolved: Resolved, facts: ModelFacts, budget: Budget) -> Iterator[Block]:
    length = budget.max_model_len
    if not length:
        return
    yield (
        f"  the same memory in other formats, for requests of {length:,} tokens "
        "(perplexity: of the model in vLLM's documentation, not of this one):"
    )
    rows = []
    for name, quality in FORMATS.items():
        layout, _ = layout_of(resolved, facts, name)
        if layout is None:
            continue
        held = layout.tokens(budget.available_bytes, length)
        rows.append(row_of(name, f"{layout.bytes_per_token:,}", f"{held:,}", quality))
    figures = (TextColumn(title, Fill.FIGURE) for title in ("bytes a token", "tokens held"))
    columns = (TextColumn("format"), *figures, TextColumn("quality", Fill.WORDS))
    yield TextTable(columns, tuple(rows), indent=2)


def _log_lines(resolved: Resolved, budget: Budget, layout: CacheLayout) -> Iterator[str]:
    length, vllm = budget.max_model_len, resolved.engine.vllm
    if not length:
        return
    available = budget.available_bytes
    blocks, request = layout.blocks(available), layout.blocks_per_request(length)
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
    yield f"  {_pool_words(layout, blocks)}"
    parts = " and ".join(_request_words(layout, length))
    yield (
        f"  A request of {length:,} tokens takes {parts}, so {blocks:,} / {request} = "
        f"{concurrency}."
    )
    old = layout.logged_tokens(available, length, "0.19.1")
    yield (
        f"  Up to 0.19 the log divided by the groups: {blocks:,} // {len(layout.groups)} x "
        f"{layout.block_tokens:,} = {old:,} tokens, as if all of them grew with the context."
    )
    yield (
        "  From 0.20 on it is concurrency x max_model_len; from 0.28 on both stand in one line. "
        "The pool is the same, so compare the concurrency."
    )


def _pool_words(layout: CacheLayout, blocks: int) -> str:
    groups, most = len(layout.groups), max(len(it.layers) for it in layout.groups)
    shared = f"{groups} groups of up to {most} layers share" if groups > 1 else "One group has"
    even = ", which take as much as one state" if layout.state_blocks else ""
    return (
        f"{shared} one pool of {blocks:,} blocks; a block is {layout.block_tokens:,} tokens{even}."
    )


def _request_words(layout: CacheLayout, length: int) -> Iterator[str]:
    cache = layout.blocks_per_request(length) - layout.state_blocks
    if cache:
        yield f"{cache} blocks of KV cache"
    if layout.state_blocks:
        yield f"{layout.state_blocks} of state"
