"""The memory of a deployment: weights, reserves, what is left for the KV cache and the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.estimate.kv_cache import PREFIX_CACHING_SINCE, CacheLayout, cache_layout
from sparkdeploy.estimate.memory_claim import CPU_SERVER_BYTES, GIB
from sparkdeploy.estimate.model_facts import Kind
from sparkdeploy.recipe.features import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.estimate.hardware import Hardware
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Checkpoint, Recipe

CONTEXTS = (8192, 32768, 131072, 262144)
HOST_BYTES = CPU_SERVER_BYTES
"""vLLM's own processes beside what the GPU holds: the size of the CPU build's (rehearsal.md 2)."""
LARGE_GPU_BYTES = 70 * GIB
"""From here on vLLM's server defaults to 1024 requests and 8192 tokens a step, else 256 and 2048
(engine/arg_utils.py, 0.25.1)."""
DRIVER_BYTES = GIB // 2
GRAPH_BYTES = GIB // 2
FP8_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory that vLLM takes beside weights and KV cache, and how we know."""

    name: str
    size_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class ContextRow:
    """What fits at one request length."""

    context_tokens: int
    concurrency: float
    tokens: int

    @property
    def requests(self) -> int:
        """Return the whole requests that fit at once."""
        return int(self.concurrency)


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the memory of one machine goes; bytes."""

    hardware: Hardware
    utilization: float
    loaded: Mapping[Kind, int]
    """Weights as they lie in memory, after the recipe's treatment."""
    reserves: tuple[Reserve, ...]
    layout: CacheLayout
    max_model_len: int
    floor_bytes: int

    @property
    def claim_bytes(self) -> int:
        """Return the share of the memory that vLLM takes."""
        return int(self.utilization * self.hardware.memory_bytes)

    @property
    def weight_bytes(self) -> int:
        """Return all weights in memory."""
        return sum(self.loaded.values())

    @property
    def reserve_bytes(self) -> int:
        """Return all reserves."""
        return sum(item.size_bytes for item in self.reserves)

    @property
    def available_bytes(self) -> int:
        """Return what is left for the KV cache, never less than nothing."""
        return max(0, self.claim_bytes - self.weight_bytes - self.reserve_bytes)

    @property
    def machine_bytes(self) -> int:
        """Return what everything but vLLM may use."""
        return self.hardware.memory_bytes - self.claim_bytes - HOST_BYTES

    def rows(self) -> tuple[ContextRow, ...]:
        """Return what fits at each length up to the recipe's own."""
        lengths = sorted({*(c for c in CONTEXTS if c <= self.max_model_len), self.max_model_len})
        available, layout = self.available_bytes, self.layout
        return tuple(
            ContextRow(
                length, layout.concurrency(available, length), layout.tokens(available, length)
            )
            for length in lengths
        )


def make_budget(resolved: Resolved, facts: ModelFacts, hardware: Hardware) -> Budget:
    """Return the memory budget of a recipe on a machine."""
    recipe, serve = resolved.recipe, resolved.recipe.serve
    return Budget(
        hardware=hardware,
        utilization=serve.gpu_memory_utilization,
        loaded=loaded_weights(facts, recipe),
        reserves=tuple(_reserves(facts, recipe, hardware)),
        layout=layout_of(resolved, facts),
        max_model_len=serve.max_model_len or facts.architecture.max_position_embeddings,
        floor_bytes=int(recipe.limits.memory_floor_gib * GIB),
    )


def layout_of(resolved: Resolved, facts: ModelFacts) -> CacheLayout:
    """Return the KV cache's layout; a drafter that is a model of its own is not counted."""
    serve = resolved.recipe.serve
    prefix_caching = serve.enable_prefix_caching
    if prefix_caching is None:
        prefix_caching = parse_version(resolved.engine.vllm) >= PREFIX_CACHING_SINCE
    drafts_by_mtp = serve.speculative is not None and serve.speculative.method == "mtp"
    return cache_layout(
        facts.architecture,
        kv_dtype=serve.kv_cache_dtype,
        draft_layers=facts.architecture.mtp_num_hidden_layers if drafts_by_mtp else 0,
        draft_tokens=serve.speculative.tokens if serve.speculative is not None else 0,
        prefix_caching=prefix_caching,
    )


def loaded_weights(facts: ModelFacts, recipe: Recipe) -> Mapping[Kind, int]:
    """Return the weights in memory: treated, and without the draft layer when nothing drafts."""
    loaded = treated_weights(facts, recipe.checkpoint)
    draft = recipe.checkpoint.draft_lm_head
    if draft is not None:
        loaded[Kind.LM_HEAD] += draft.rows * (facts.architecture.hidden_size + 4)
    speculative = recipe.serve.speculative
    if speculative is None or speculative.method != "mtp":
        loaded = {
            kind: size
            for kind, size in loaded.items()
            if kind not in {Kind.MTP_DENSE, Kind.MTP_EXPERTS}
        }
    return loaded


def treated_weights(facts: ModelFacts, checkpoint: Checkpoint) -> dict[Kind, int]:
    """Return the weights after the treatment: FP8 with a scale a block, INT8 with a scale a row."""
    treated = dict(facts.weight_bytes)
    fp8 = checkpoint.fp8_dense
    # A finished hybrid's files are counted as they are: its shared experts are FP8 already.
    if fp8.mode != "off" and not fp8.is_finished and Kind.SHARED_EXPERTS in treated:
        elements = treated[Kind.SHARED_EXPERTS] // 2
        treated[Kind.SHARED_EXPERTS] = elements + 4 * (elements // FP8_BLOCK**2)
    if checkpoint.lm_head == "int8" and Kind.LM_HEAD in treated:
        elements = treated[Kind.LM_HEAD] // 2
        treated[Kind.LM_HEAD] = elements + 4 * facts.architecture.vocab_size
    return treated


def budget_warnings(budget: Budget) -> Iterator[str]:
    """Yield what will go wrong on a machine with this budget."""
    gib = f"{budget.floor_bytes / GIB:g} GiB"
    if budget.hardware.shares_memory and budget.machine_bytes < budget.floor_bytes:
        yield (
            f"only {budget.machine_bytes / GIB:.1f} GiB would be left for the machine, and the "
            f"memory floor is {gib}: lower serve.gpu_memory_utilization, or the guard ends vLLM"
        )
    if budget.available_bytes == 0:
        yield (
            f"nothing is left for the KV cache: weights and reserves take "
            f"{(budget.weight_bytes + budget.reserve_bytes) / GIB:.1f} GiB of "
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
        length = serve.max_model_len or a.max_position_embeddings
        yield Reserve(
            "TurboQuant's workspace for long prompts",
            2 * a.num_key_value_heads * length * a.head_dim * 2,
            "vllm.md section D: 2 x KV heads x max_model_len x head size x 2 bytes",
        )
