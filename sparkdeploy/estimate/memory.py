"""The memory of a deployment: weights, reserves, what is left for KV cache and machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sparkdeploy.checkpoint.layers import Architecture, Attention
from sparkdeploy.estimate.hardware import Hardware
from sparkdeploy.estimate.kv_cache import (
    LARGE_BATCH_TOKENS,
    SMALL_BATCH_TOKENS,
    CacheLayout,
    layout_of,
)
from sparkdeploy.estimate.model import ModelFacts, WeightKind, dense_share_of
from sparkdeploy.node.facts import NodeFact
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import switch_of, value_of
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.schema import Checkpoint, Recipe, Serve

GIB = 2**30
CPU_SERVER_BYTES = 3 * GIB
"""vLLM's CPU build with the tiny model: measured 2.56 GiB in a container, 3.1 GB RSS outside."""
HOST_BYTES = 8 * GIB
"""For vLLM's processes and pinned buffers beside a GPU with memory of its own; not measured."""
CONTEXTS = (8192, 32768, 131072, 262144)
LARGE_GPU_BYTES = 70 * GIB
"""From here on vLLM's server defaults to 1024 requests and 8192 tokens a step, else 256 and 2048
(engine/arg_utils.py, 0.25.1)."""
DRIVER_BYTES = GRAPH_BYTES = GIB // 2
FP8_BLOCK = 128
INT4_GROUP = 128
LINEAR: Final = frozenset(
    {
        *(WeightKind.EXPERTS, WeightKind.SHARED_EXPERTS, WeightKind.FEED_FORWARD),
        *(WeightKind.ATTENTION, WeightKind.GDN, WeightKind.MAMBA),
    }
)


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    needed_bytes: int
    """Of the machine's memory."""
    floor_bytes: int
    """What has to stay free for the machine beside it."""
    page_cache_counts: bool = True
    """False where CUDA takes from the machine's memory: it counts only what is really free."""
    vllm_bytes: int | None = None
    """What vLLM may use on the GPU: on a Spark what is needed. None where there is no GPU's."""

    @property
    def total_bytes(self) -> int:
        return self.needed_bytes + self.floor_bytes


def memory_claim(recipe: Recipe, engine: Engine, node: NodeFact) -> MemoryClaim | None:
    """Return what a recipe takes of a node; None when the node's memory is not known."""
    floor_bytes = int(recipe.limits.memory_floor_gib * GIB)
    if engine.runs_on == "cpu":
        return MemoryClaim(CPU_SERVER_BYTES + GIB, floor_bytes)
    share = recipe.serve.gpu_memory_utilization
    if node.gpu is not None and node.gpu.memory_bytes is not None:
        vllm_bytes = int(share * node.gpu.memory_bytes)
        return MemoryClaim(HOST_BYTES, floor_bytes, vllm_bytes=vllm_bytes)
    if node.memory_total_bytes is None:
        return None
    needed_bytes = int(share * node.memory_total_bytes)
    return MemoryClaim(
        needed_bytes,
        floor_bytes,
        page_cache_counts=node.gpu is None,
        vllm_bytes=needed_bytes,
    )


@dataclass(frozen=True, slots=True)
class Reserve:
    name: str
    size_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class ContextRow:
    context_tokens: int
    concurrency: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the memory of one machine goes; bytes."""

    hardware: Hardware
    utilization: float
    loaded: Mapping[WeightKind, int]
    """Weights as they lie in memory, after the recipe's conversion."""
    reserves: tuple[Reserve, ...]
    layout: CacheLayout | None
    """None for a model that keeps no cache, and where `unknown` says what is not known of it."""
    max_model_len: int
    """0 where nobody says."""
    floor_bytes: int
    unknown: str = ""

    @property
    def claim_bytes(self) -> int:
        return int(self.utilization * self.hardware.memory_bytes)

    @property
    def weight_bytes(self) -> int:
        return sum(self.loaded.values())

    @property
    def taken_bytes(self) -> int:
        return self.weight_bytes + sum(item.size_bytes for item in self.reserves)

    @property
    def available_bytes(self) -> int:
        """Return what is left for the KV cache, never less than nothing."""
        return max(0, self.claim_bytes - self.taken_bytes)

    @property
    def machine_bytes(self) -> int:
        """Return what everything but vLLM may use; its own processes are as large as on a CPU."""
        return self.hardware.memory_bytes - self.claim_bytes - CPU_SERVER_BYTES

    @property
    def longest(self) -> ContextRow | None:
        """Return the requests at the recipe's own context; None where the cache is not known."""
        return next(iter(self.rows()[-1:]), None)

    def rows(self) -> tuple[ContextRow, ...]:
        """Return a row for each of some contexts, the recipe's own last; none without a cache."""
        layout, available = self.layout, self.available_bytes
        if layout is None:
            return ()
        shorter = {length for length in CONTEXTS if length < self.max_model_len}
        return tuple(
            ContextRow(
                length, layout.concurrency(available, length), layout.tokens(available, length)
            )
            for length in sorted({*shorter, self.max_model_len} - {0})
        )


def make_budget(resolved: Resolved, facts: ModelFacts, hardware: Hardware) -> Budget:
    recipe = resolved.recipe
    layout, unknown = layout_of(resolved, facts, batched_tokens=_step(recipe.serve, hardware)[1])
    return Budget(
        hardware=hardware,
        utilization=recipe.serve.gpu_memory_utilization,
        loaded=loaded_weights(facts, recipe, hardware),
        reserves=tuple(_reserves(facts, recipe, hardware)),
        layout=layout,
        max_model_len=longest_context(recipe.serve, facts.architecture),
        floor_bytes=int(recipe.limits.memory_floor_gib * GIB),
        unknown=unknown,
    )


def longest_context(serve: Serve, architecture: Architecture | None) -> int:
    """Return the longest request in tokens; 0 where neither recipe nor model says."""
    own = architecture.max_position_embeddings if architecture is not None else 0
    return serve.context_limit or own


def loaded_weights(
    facts: ModelFacts, recipe: Recipe, hardware: Hardware | None = None
) -> Mapping[WeightKind, int]:
    """Return the weights in memory: converted, and without the draft layer when nothing drafts."""
    loaded = converted_weights(facts, recipe)
    draft, architecture = recipe.checkpoint.draft_lm_head, facts.architecture
    # A model that is not on this machine has no weights to add to; one that ties its LM head to
    # its embedding has a draft head all the same.
    if loaded and draft is not None and architecture is not None:
        draft_bytes = draft.rows * (architecture.hidden_size + 4)
        loaded[WeightKind.LM_HEAD] = loaded.get(WeightKind.LM_HEAD, 0) + draft_bytes
    speculative = recipe.serve.speculative
    if speculative is None or not speculative.is_mtp:
        loaded.pop(WeightKind.MTP_DENSE, None)
        loaded.pop(WeightKind.MTP_EXPERTS, None)
    if switch_of(recipe.serve.extra_args, "--language-model-only"):
        loaded.pop(WeightKind.VISION, None)
        loaded.pop(WeightKind.AUDIO, None)
    if hardware is not None and WeightKind.EXPERTS in loaded:
        loaded[WeightKind.EXPERTS] = _in_tiles(loaded[WeightKind.EXPERTS], facts, hardware)
    return loaded


def _in_tiles(size_bytes: int, facts: ModelFacts, hardware: Hardware) -> int:
    """MXFP4 experts are padded to the tiles of the kernel that a machine has for them."""
    experts = facts.architecture.experts if facts.architecture is not None else None
    if facts.quantisation != "mxfp4" or facts.architecture is None or experts is None:
        return size_bytes
    for width, tile in zip(
        (facts.architecture.hidden_size, experts.width), hardware.mxfp4_tile, strict=True
    ):
        size_bytes = size_bytes * (-(-width // tile) * tile) // width
    return size_bytes


def converted_weights(facts: ModelFacts, recipe: Recipe) -> dict[WeightKind, int]:
    """Return the weights after their conversions.

    FP8 has a scale a block, INT8 a scale a row, INT4 a 16-bit scale a group of 128 inputs and no
    zero point.

    `--quantization fp8` makes FP8 of 16-bit linear layers and experts while vLLM loads them
    (model_executor/layers/quantization/fp8.py); embeddings, head, router and towers stay.
    """
    loaded = dict(facts.memory_bytes)
    if recipe.serve.quantization == "fp8" and not facts.quantisation:
        loaded |= {kind: loaded[kind] // 2 for kind in LINEAR & loaded.keys()}
    loaded |= _made_mxfp4(loaded, recipe.serve.extra_args)
    checkpoint = recipe.checkpoint
    fp8 = checkpoint.fp8_dense
    # A finished hybrid's files are counted as they are: its shared experts are FP8 already.
    shares: Mapping[WeightKind, float] = {}
    if fp8.takes_all:
        shares = dense_share_of(facts)
    elif fp8.mode != "off" and not fp8.is_finished:
        shares = {WeightKind.SHARED_EXPERTS: 1.0}
    for kind in shares.keys() & loaded.keys():
        elements = int(loaded[kind] * shares[kind]) // 2
        loaded[kind] -= elements - 4 * (elements // FP8_BLOCK**2)
    if checkpoint.shared_experts == "int4" and WeightKind.SHARED_EXPERTS in loaded:
        loaded[WeightKind.SHARED_EXPERTS] = _int4_bytes(loaded[WeightKind.SHARED_EXPERTS] // 2)
    if WeightKind.LM_HEAD in loaded:
        loaded[WeightKind.LM_HEAD] = _head_bytes(loaded[WeightKind.LM_HEAD], facts, checkpoint)
    if checkpoint.mtp_weights == "int4-fp8":
        loaded |= _shrunk_draft_layer(loaded, facts.architecture)
    return loaded


def _made_mxfp4(
    loaded: Mapping[WeightKind, int], arguments: Sequence[str]
) -> dict[WeightKind, int]:
    """Return what a fork's `--mxfp4-layers` makes of 16 bits: 4 and a scale byte for each 32.

    Its experts are MXFP4 already. The flag is that of the image sparkarena/spark-vllm-docker:mxfp4.
    """
    named = (value_of(arguments, "--mxfp4-layers") or "").split(",")
    kinds = {WeightKind.ATTENTION: "qkv", WeightKind.LM_HEAD: "lm_head"}
    made = (kind for kind, name in kinds.items() if name in named and kind in loaded)
    return {kind: loaded[kind] * 17 // 64 for kind in made}


def _head_bytes(size_bytes: int, facts: ModelFacts, checkpoint: Checkpoint) -> int:
    """A head of 16 bits after its conversion; INT8 rows have an FP32 scale each."""
    elements = size_bytes // 2
    rows = facts.architecture.vocab_size if facts.architecture is not None else 0
    hidden = facts.architecture.hidden_size if facts.architecture is not None else 0
    if 3 * size_bytes * facts.tensor_ranks < 4 * rows * hidden:
        # Quantised by the checkpoint itself, which no conversion touches.
        return size_bytes
    match checkpoint.lm_head:
        case "int8":
            return elements + 4 * rows
        case "int4":
            return _int4_bytes(elements)
        case "bf16":
            return size_bytes


def _int4_bytes(elements: int) -> int:
    """Half a byte each, and a 16-bit scale a group; what the plugin converts has no zero points."""
    return elements // 2 + 2 * (elements // INT4_GROUP)


def _shrunk_draft_layer(
    converted: Mapping[WeightKind, int], architecture: Architecture | None
) -> dict[WeightKind, int]:
    """Experts as INT4, the rest as FP8 but for its routers; norms and gates are next to nothing."""
    shrunk = {}
    if WeightKind.MTP_EXPERTS in converted:
        shrunk[WeightKind.MTP_EXPERTS] = _int4_bytes(converted[WeightKind.MTP_EXPERTS] // 2)
    if WeightKind.MTP_DENSE in converted:
        experts = architecture.experts if architecture is not None else None
        routers = 0
        if architecture is not None and experts is not None:
            routers = 2 * experts.count * architecture.hidden_size * len(architecture.draft_layers)
        elements = max(0, converted[WeightKind.MTP_DENSE] - routers) // 2
        shrunk[WeightKind.MTP_DENSE] = routers + elements + 4 * (elements // FP8_BLOCK**2)
    return shrunk


def budget_warnings(budget: Budget) -> Iterator[str]:
    """Yield what the verdict does not say: that the machine itself is left with too little."""
    if budget.hardware.shares_memory and budget.machine_bytes < budget.floor_bytes:
        yield (
            f"only {budget.machine_bytes / GIB:.1f} GiB would be left for the machine, and the "
            f"memory floor is {budget.floor_bytes / GIB:g} GiB: lower "
            "serve.gpu_memory_utilization, or the guard ends vLLM"
        )


def _step(serve: Serve, hardware: Hardware) -> tuple[int, int]:
    """Return the requests and tokens of a step at most."""
    is_large = hardware.memory_bytes >= LARGE_GPU_BYTES
    tokens = LARGE_BATCH_TOKENS if is_large else SMALL_BATCH_TOKENS
    requests = 1024 if is_large else 256
    return serve.max_num_seqs or requests, serve.max_num_batched_tokens or tokens


def _reserves(facts: ModelFacts, recipe: Recipe, hardware: Hardware) -> Iterator[Reserve]:
    serve, architecture = recipe.serve, facts.architecture
    requests, tokens = _step(serve, hardware)
    if architecture is not None:
        logits_dtype, logits_bytes = _logits(recipe)
        # vLLM's newer model runner copies logits to FP32 even where they are FP32 (0.33's
        # v1/worker/gpu/sample/sampler.py); the older one does not, and needs so much less.
        sampling = requests * architecture.vocab_size * (logits_bytes + 4 + 4)
        forward = tokens * _elements_of_token(architecture) * 2
        yield Reserve(
            "activations at the peak of profiling",
            max(sampling, forward),
            f"derived: the larger of sampling {requests} rows (logits in {logits_dtype}, an FP32 "
            f"copy and a sorted one) and a forward pass of {tokens} tokens; not measured",
        )
    yield Reserve("CUDA context and libraries", DRIVER_BYTES, "assumed, not measured")
    if not serve.enforce_eager:
        yield Reserve(
            "CUDA graphs", GRAPH_BYTES, "assumed; vLLM estimates and subtracts its own figure"
        )
    if facts.drafter is not None:
        drafter = facts.drafter
        yield Reserve(f"drafter {drafter.repo}", sum(drafter.memory_bytes.values()), drafter.origin)
    if serve.kv_cache_dtype.startswith("turboquant") and architecture is not None:
        yield from _turboquant_workspace(architecture, longest_context(serve, architecture))


def _logits(recipe: Recipe) -> tuple[str, int]:
    """Return the dtype of the head's logits and its bytes; a head of INT8 or INT4 gives FP32."""
    return ("BF16", 2) if recipe.checkpoint.lm_head == "bf16" else ("FP32", 4)


def _turboquant_workspace(architecture: Architecture, length: int) -> Iterator[Reserve]:
    mixers = (mixer for layer in architecture.layers for mixer in layer.mixers)
    attention = next((it for it in mixers if isinstance(it, Attention)), None)
    if attention is not None:
        yield Reserve(
            "TurboQuant's workspace for long prompts",
            2 * attention.kv_heads * length * attention.key_width * 2,
            "vLLM's turboquant_attn.py: 2 x KV heads x max_model_len x head size x 2 bytes",
        )


def _elements_of_token(architecture: Architecture) -> int:
    """Return how many elements one token has in flight where a forward pass is widest."""
    experts, state = architecture.experts, architecture.recurrent
    hidden = architecture.hidden_size
    channels = state.channels + state.groups * state.group_channels if state is not None else 0
    if experts is None:
        return 3 * architecture.dense_width + 2 * hidden + 4 * channels
    wide = max(2 * experts.width, hidden) + experts.width
    return experts.chosen * wide + 4 * channels
