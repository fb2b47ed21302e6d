"""The memory of a deployment: weights, reserves, what is left for KV cache and machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.console import format_gib
from sparkdeploy.estimate.kv_cache import PREFIX_CACHING_SINCE, CacheLayout, cache_layout
from sparkdeploy.estimate.memory_claim import CPU_SERVER_BYTES, GIB
from sparkdeploy.estimate.model_facts import WeightKind
from sparkdeploy.recipe.features import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.estimate.hardware import Hardware
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Checkpoint, Recipe

CONTEXTS = (8192, 32768, 131072, 262144)
LARGE_GPU_BYTES = 70 * GIB
"""From here on vLLM's server defaults to 1024 requests and 8192 tokens a step, else 256 and 2048
(engine/arg_utils.py, 0.25.1)."""
DRIVER_BYTES = GRAPH_BYTES = GIB // 2
FP8_BLOCK = 128
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


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory that vLLM takes beside weights and KV cache, and how we know."""

    name: str
    size_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class ContextRow:
    context_tokens: int
    concurrency: float
    tokens: int

    @property
    def requests(self) -> int:
        return int(self.concurrency)


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the memory of one machine goes; bytes."""

    hardware: Hardware
    utilization: float
    loaded: Mapping[WeightKind, int]
    """Weights as they lie in memory, after the recipe's treatment."""
    reserves: tuple[Reserve, ...]
    layout: CacheLayout
    max_model_len: int
    floor_bytes: int

    @property
    def claim_bytes(self) -> int:
        return int(self.utilization * self.hardware.memory_bytes)

    @property
    def weight_bytes(self) -> int:
        return sum(self.loaded.values())

    @property
    def reserve_bytes(self) -> int:
        return sum(item.size_bytes for item in self.reserves)

    @property
    def available_bytes(self) -> int:
        """Return what is left for the KV cache, never less than nothing."""
        return max(0, self.claim_bytes - self.weight_bytes - self.reserve_bytes)

    @property
    def machine_bytes(self) -> int:
        """Return what everything but vLLM may use; its own processes are as large as on a CPU."""
        return self.hardware.memory_bytes - self.claim_bytes - CPU_SERVER_BYTES

    def rows(self) -> tuple[ContextRow, ...]:
        shorter = {length for length in CONTEXTS if length < self.max_model_len}
        available, layout = self.available_bytes, self.layout
        return tuple(
            ContextRow(
                length, layout.concurrency(available, length), layout.tokens(available, length)
            )
            for length in sorted({*shorter, self.max_model_len})
        )


def make_budget(resolved: Resolved, facts: ModelFacts, hardware: Hardware) -> Budget:
    """Return the memory budget of a recipe on a machine.

    For one machine of several, `facts` are those of its rank (`share.facts_of_rank`).
    """
    recipe, serve = resolved.recipe, resolved.recipe.serve
    return Budget(
        hardware=hardware,
        utilization=serve.gpu_memory_utilization,
        loaded=loaded_weights(facts, recipe),
        reserves=tuple(_reserves(facts, recipe, hardware)),
        layout=layout_of(resolved, facts),
        max_model_len=serve.context_limit or facts.architecture.max_position_embeddings,
        floor_bytes=int(recipe.limits.memory_floor_gib * GIB),
    )


def layout_of(resolved: Resolved, facts: ModelFacts, kv_dtype: str | None = None) -> CacheLayout:
    """Return the KV cache's layout, in the recipe's format or another one.

    A drafter that is a model of its own is not counted.
    """
    serve = resolved.recipe.serve
    prefix_caching = serve.enable_prefix_caching
    if prefix_caching is None:
        prefix_caching = parse_version(resolved.engine.vllm) >= PREFIX_CACHING_SINCE
    drafts_by_mtp = serve.speculative is not None and serve.speculative.is_mtp
    return cache_layout(
        facts.architecture,
        kv_dtype=kv_dtype or serve.kv_cache_dtype,
        draft_layers=facts.architecture.mtp_num_hidden_layers if drafts_by_mtp else 0,
        draft_tokens=serve.speculative.tokens if serve.speculative is not None else 0,
        prefix_caching=prefix_caching,
    )


def loaded_weights(facts: ModelFacts, recipe: Recipe) -> Mapping[WeightKind, int]:
    """Return the weights in memory: treated, and without the draft layer when nothing drafts."""
    loaded = treated_weights(facts, recipe.checkpoint)
    draft = recipe.checkpoint.draft_lm_head
    if draft is not None:
        loaded[WeightKind.LM_HEAD] += draft.rows * (facts.architecture.hidden_size + 4)
    speculative = recipe.serve.speculative
    if speculative is None or not speculative.is_mtp:
        loaded.pop(WeightKind.MTP_DENSE, None)
        loaded.pop(WeightKind.MTP_EXPERTS, None)
    return loaded


def treated_weights(facts: ModelFacts, checkpoint: Checkpoint) -> dict[WeightKind, int]:
    """Return the weights after the treatment: FP8 with a scale a block, INT8 with a scale a row."""
    treated = dict(facts.weight_bytes)
    fp8 = checkpoint.fp8_dense
    # A finished hybrid's files are counted as they are: its shared experts are FP8 already.
    if fp8.mode != "off" and not fp8.is_finished and WeightKind.SHARED_EXPERTS in treated:
        elements = treated[WeightKind.SHARED_EXPERTS] // 2
        treated[WeightKind.SHARED_EXPERTS] = elements + 4 * (elements // FP8_BLOCK**2)
    if checkpoint.lm_head == "int8" and WeightKind.LM_HEAD in treated:
        elements = treated[WeightKind.LM_HEAD] // 2
        treated[WeightKind.LM_HEAD] = elements + 4 * facts.architecture.vocab_size
    return treated


def budget_warnings(budget: Budget) -> Iterator[str]:
    if budget.hardware.shares_memory and budget.machine_bytes < budget.floor_bytes:
        yield (
            f"only {budget.machine_bytes / GIB:.1f} GiB would be left for the machine, and the "
            f"memory floor is {budget.floor_bytes / GIB:g} GiB: lower "
            "serve.gpu_memory_utilization, or the guard ends vLLM"
        )
    if budget.available_bytes == 0:
        taken = (budget.weight_bytes + budget.reserve_bytes) / GIB
        yield (
            f"nothing is left for the KV cache: weights and reserves take {taken:.1f} GiB of "
            f"{budget.claim_bytes / GIB:.1f} GiB"
        )
    elif budget.layout.concurrency(budget.available_bytes, budget.max_model_len) < 1:
        yield (
            f"one request of serve.max_model_len = {budget.max_model_len:,} tokens does not fit; "
            "vLLM refuses to start: lower serve.max_model_len or compress the KV cache"
        )


def _reserves(facts: ModelFacts, recipe: Recipe, hardware: Hardware) -> Iterator[Reserve]:
    a, serve = facts.architecture, recipe.serve
    is_large = hardware.memory_bytes >= LARGE_GPU_BYTES
    requests = serve.max_num_seqs or (1024 if is_large else 256)
    tokens = serve.max_num_batched_tokens or (8192 if is_large else 2048)
    sampling = requests * a.vocab_size * (2 + 4 + 4)
    wide = max(2 * a.moe_intermediate_size, a.hidden_size) + a.moe_intermediate_size
    forward = tokens * (a.num_experts_per_tok * wide + 4 * a.convolved_width) * 2
    yield Reserve(
        "activations at the peak of profiling",
        max(sampling, forward),
        f"derived: the larger of sampling {requests} rows (BF16, FP32 and a sorted copy of the "
        f"logits) and a forward pass of {tokens} tokens; not measured",
    )
    yield Reserve("CUDA context and libraries", DRIVER_BYTES, "assumed, not measured")
    if not serve.enforce_eager:
        yield Reserve(
            "CUDA graphs", GRAPH_BYTES, "assumed; vLLM estimates and subtracts its own figure"
        )
    if serve.kv_cache_dtype.startswith("turboquant"):
        length = serve.context_limit or a.max_position_embeddings
        yield Reserve(
            "TurboQuant's workspace for long prompts",
            2 * a.num_key_value_heads * length * a.head_dim * 2,
            "vLLM's turboquant_attn.py: 2 x KV heads x max_model_len x head size x 2 bytes",
        )


def capacity_lines(resolved: Resolved, facts: ModelFacts, budget: Budget) -> Iterator[str]:
    yield from _weight_lines(facts, budget)
    yield from _memory_lines(budget)
    yield from _cache_lines(resolved, budget)
    yield from _format_lines(resolved, facts, budget)
    yield from _log_lines(resolved, budget)
    for warning in budget_warnings(budget):
        yield f"  ! {warning}"


def capacity_as_dict(resolved: Resolved, facts: ModelFacts, budget: Budget) -> dict[str, Any]:
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
        "kv_bytes_per_token": layout.bytes_per_token,
        "state_bytes_per_request": layout.request_state_bytes,
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
    speculative = resolved.recipe.serve.speculative
    yield f"KV cache, {resolved.recipe.serve.kv_cache_dtype}"
    yield (
        f"  {layout.bytes_per_token:,} bytes a token in {layout.attention_layers} full-attention "
        f"layers, and {layout.request_state_bytes / 2**20:.0f} MiB of Gated DeltaNet state a "
        "request, however long it is"
    )
    yield f"  {'context':>10}{'requests at once':>18}{'tokens held':>14}"
    for row in budget.rows():
        yield f"  {row.context_tokens:>10,}{row.concurrency:>18.2f}{row.tokens:>14,}"
    if speculative is not None and speculative.model:
        yield "  the drafter is a model of its own: its weights and cache are not counted here"


def _format_lines(resolved: Resolved, facts: ModelFacts, budget: Budget) -> Iterator[str]:
    length = budget.max_model_len
    yield f"  the same memory in other formats, for requests of {length:,} tokens:"
    for name, quality in FORMATS.items():
        layout = layout_of(resolved, facts, name)
        held = layout.tokens(budget.available_bytes, length)
        yield (
            f"  {name:<20}{layout.bytes_per_token:>8,} bytes a token{held:>12,} tokens  {quality}"
        )


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
