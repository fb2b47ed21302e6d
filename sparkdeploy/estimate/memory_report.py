"""The memory of a deployment in words and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.estimate.layout import layout_of
from sparkdeploy.estimate.memory import budget_warnings
from sparkdeploy.estimate.memory_claim import GIB
from sparkdeploy.estimate.weights import WeightKind
from sparkdeploy.terminal.style import Piece, Style, line_of
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.estimate.kv_cache import CacheLayout
    from sparkdeploy.estimate.memory import Budget
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.terminal.tables import Block

FORMATS = {
    "auto": "BF16",
    "fp8": "8-bit floats",
    "turboquant_k8v4": "perplexity +1.17 %",
    "turboquant_4bit_nc": "perplexity +2.71 %",
    "turboquant_k3v4_nc": "perplexity +10.63 %",
    "turboquant_3bit_nc": "perplexity +20.59 %",
}
"""Perplexity: vLLM's own documentation in quantization/turboquant/config.py (0.25.1, 0.33)."""


def memory_lines(resolved: Resolved, facts: ModelFacts, budget: Budget) -> Iterator[Block]:
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
    stored, loaded = facts.weight_bytes, budget.loaded
    sizes = {
        kind.value: (stored.get(kind, 0), loaded.get(kind, 0))
        for kind in WeightKind
        if kind in stored or kind in loaded
    }
    sizes["together"] = (facts.total_bytes, budget.weight_bytes)
    for name, (on_disk, in_memory) in sizes.items():
        yield f"  {name:<26}{format_gib(on_disk):>12}{format_gib(in_memory):>12}"


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
        if layout is not None:
            held = layout.tokens(budget.available_bytes, length)
            rows.append(row_of(name, f"{layout.bytes_per_token:,}", f"{held:,}", quality))
    figures = (TextColumn(title, Fill.FIGURE) for title in ("bytes a token", "tokens held"))
    columns = (TextColumn("format"), *figures, TextColumn("quality", Fill.WORDS))
    yield TextTable(columns, tuple(rows), indent=2)
