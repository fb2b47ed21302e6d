"""The KV cache as vLLM lays it out: pages of layers, groups of layers, blocks of one pool.

Read in vLLM 0.25.1, 0.32 and 0.33 (v1/core/kv_cache_utils.py `get_kv_cache_groups`,
v1/kv_cache_interface.py and platforms/interface.py `_align_hybrid_block_size`); tests hold it
against logs of real vLLMs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sparkdeploy.checkpoint.layers import STATE_BYTES, Architecture, Latent, Layer, Mixer, Recurrent
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.cache_formats import token_bytes
from sparkdeploy.estimate.model import ModelFacts, drafting_layers
from sparkdeploy.recipe.answers import planned_answers
from sparkdeploy.recipe.flags import switch_of, value_of
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.releases import parse_version

CUDA_BLOCK_TOKENS = 16
"""A block is a multiple of this many tokens with FlashAttention, FlashInfer and TurboQuant."""
CPU_BLOCK_TOKENS = 128
SPARSE_BLOCK_TOKENS = 64
"""Of sparse latent attention (FlashMLA's kernels), whose indexer takes no other."""
LATENT_ALIGNMENT_TOKENS = 128
"""What a hybrid with latent attention aligns its blocks to."""
CONTEXT_AWARE_SINCE = (0, 20, 0)
ONE_CACHE_MODE_SINCE = (0, 32, 0)
"""Before, vLLM kept Mamba's states for prefix caching in a way of their own (`all`)."""
IN_FLIGHT_SINCE = (0, 26, 0)
"""From here on a window also holds the tokens of the steps that are scheduled beside the running
one (`max_in_flight_tokens`)."""
LARGE_BATCH_TOKENS, SMALL_BATCH_TOKENS = 8192, 2048
"""vLLM's server computes so many tokens a step on GPUs from 70 GiB on, and on smaller ones
(engine/arg_utils.py, 0.25.1)."""
PREFIX_CACHING_SINCE = (0, 29, 0)
"""Off for hybrid models in 0.25.1, on in 0.32 (read in code); in between nobody here looked."""

Kind = Literal["full", "window", "chunk", "state"]


class UnknownLayoutError(Exception):
    """Layers that vLLM puts into pages in a way that the planner does not know."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    kv_dtype: str = "auto"
    vllm: str = "0.25.1"
    alignment_tokens: int = CUDA_BLOCK_TOKENS
    """The block of the attention backend, where the recipe names none."""
    block_tokens: int | None = None
    batched_tokens: int = 8192
    draft_tokens: int = 0
    prefix_caching: bool = False
    joins_windows: bool = False
    """`--disable-hybrid-kv-cache-manager`: windows are kept as the whole context is."""
    tensor_ranks: int = 1
    memory_bytes: int | None = None
    """Of one element of a state's memory, where not the model decides it."""
    concurrent_steps: int = 1
    """Steps that vLLM has scheduled at once: two on a GPU, where it schedules ahead."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's pages. Layers with equal ones share a group."""

    kind: Kind
    block_tokens: int
    page_bytes: int
    shape: tuple[int, ...]
    """What a page is made of: layers of another shape are no group, whatever their size."""
    reach_tokens: int = 0
    """Of a window or chunk."""
    states: int = 0
    """Pages that a request holds of a state."""

    def request_blocks(self, context_tokens: int, in_flight_tokens: int) -> int:
        """Return the blocks that a request of this length holds at most."""
        match self.kind:
            case "state":
                return self.states
            case "full":
                return -(-context_tokens // self.block_tokens)
            case "window":
                held = min(self.reach_tokens - 1 + in_flight_tokens, context_tokens)
                return -(-held // self.block_tokens) + 1
            case "chunk":
                held = min(self.reach_tokens + in_flight_tokens, context_tokens)
                return -(-held // self.block_tokens)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    cache: LayerCache
    layers: tuple[int, ...]
    """Their places among the model's caches."""
    block_bytes: int
    """A page of each of its layers."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Blocks of one pool, from which every group takes its own."""

    groups: tuple[CacheGroup, ...]
    in_flight_tokens: int

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block: those of the group that needs most."""
        return max(group.block_bytes for group in self.groups)

    @property
    def block_tokens(self) -> int:
        sizes = [it.cache.block_tokens for it in self.groups if it.cache.kind != "state"]
        return max(sizes, default=0)

    @property
    def bytes_per_token(self) -> int:
        if len(self.groups) == 1 and self.growing_layers:
            return self.block_bytes // self.block_tokens
        full = (group for group in self.groups if group.cache.kind == "full")
        return sum(group.block_bytes // group.cache.block_tokens for group in full)

    @property
    def growing_layers(self) -> int:
        return sum(len(group.layers) for group in self.groups if group.cache.kind == "full")

    @property
    def state_blocks(self) -> int:
        return sum(group.cache.states for group in self.groups)

    @property
    def request_state_bytes(self) -> int:
        """Return the pages that a request's states occupy, however long it is."""
        return self.state_blocks * self.block_bytes

    def blocks(self, available_bytes: int) -> int:
        return max(0, available_bytes) // self.block_bytes

    def blocks_per_request(self, context_tokens: int) -> int:
        """Return the blocks of a request of this length: whole ones in every group."""
        caches = (group.cache for group in self.groups)
        return sum(it.request_blocks(context_tokens, self.in_flight_tokens) for it in caches)

    def concurrency(self, available_bytes: int, context_tokens: int) -> float:
        """Return how many requests of this length fit at once, vLLM's `Maximum concurrency`."""
        return self.blocks(available_bytes) / self.blocks_per_request(context_tokens)

    def tokens(self, available_bytes: int, context_tokens: int) -> int:
        return int(self.concurrency(available_bytes, context_tokens) * context_tokens)

    def logged_tokens(self, available_bytes: int, max_model_len: int, vllm: str) -> int:
        """Return the number vLLM logs as `GPU KV cache size`.

        Up to 0.19 it is blocks // groups * block size, as if every group grew with the context;
        from 0.20 on it is the concurrency at max_model_len times max_model_len.
        """
        if parse_version(vllm) < CONTEXT_AWARE_SINCE:
            return self.blocks(available_bytes) // len(self.groups) * self.block_tokens
        return self.tokens(available_bytes, max_model_len)


def cache_layout(
    architecture: Architecture,
    settings: CacheSettings,
    *,
    drafter: Sequence[Layer] = (),
    stage: range | None = None,
) -> CacheLayout | None:
    """Return the layout of a model's cache; None for a model that keeps none.

    `drafter` are the layers that draft beside the model's own; `stage` is what one rank of a
    pipeline has of the model's layers: the drafter is whole on the last one, so every one is given
    it. Raises UnknownLayoutError for pages that vLLM unites in a way that is not known here,
    RecipeError for a format whose bytes are not known.
    """
    layers = [*architecture.layers, *drafter]
    if not architecture.keeps_cache:
        return None
    block_tokens = _block_tokens(layers, settings)
    caches = [
        (at, cache)
        for at, layer in enumerate(layers)
        for mixer in layer.kept
        for cache in _caches(mixer, block_tokens, settings)
    ]
    if not caches:
        return None
    first_draft = len(architecture.layers)
    own = range(len(layers)) if stage is None else [*stage, *range(first_draft, len(layers))]
    counts_steps = parse_version(settings.vllm) >= IN_FLIGHT_SINCE
    in_flight = (settings.concurrent_steps if counts_steps else 1) * settings.batched_tokens
    if _is_one_type([cache for _, cache in caches]):
        # One table of blocks serves all, so pages of any size stand side by side in a block.
        here = [(at, cache) for at, cache in caches if at in own]
        block_bytes = sum(cache.page_bytes for _, cache in here)
        group = CacheGroup(caches[0][1], tuple(at for at, _ in here), block_bytes)
        return CacheLayout((group,), in_flight)
    groups = tuple(_groups(caches, frozenset(own)))
    return CacheLayout(groups, in_flight)


def _state_bytes(mixer: Mixer, settings: CacheSettings) -> int:
    if not isinstance(mixer, Recurrent):
        return 0
    return mixer.state_bytes(
        ranks=settings.tensor_ranks,
        draft_tokens=settings.draft_tokens,
        memory_bytes=settings.memory_bytes,
    )


def _block_tokens(layers: Sequence[Layer], settings: CacheSettings) -> int:
    """All pages of a hybrid have one size: a block has as many tokens as fill its largest state."""
    mixers = [mixer for layer in layers for mixer in layer.kept]
    alignment = settings.block_tokens or settings.alignment_tokens
    if any(isinstance(mixer, Latent) and mixer.indexer_width for mixer in mixers):
        alignment = max(alignment, SPARSE_BLOCK_TOKENS)
    state = max((_state_bytes(mixer, settings) for mixer in mixers), default=0)
    sizes = (token_bytes(it, settings.kv_dtype, settings.tensor_ranks) for it in mixers)
    token = next((size for size in sizes if size), 0)
    if not state or not token:
        return alignment
    if any(isinstance(mixer, Latent) for mixer in mixers):
        alignment = max(alignment, LATENT_ALIGNMENT_TOKENS)
    return alignment * -(-state // (alignment * token))


def _caches(mixer: Mixer, block_tokens: int, settings: CacheSettings) -> Iterator[LayerCache]:
    if isinstance(mixer, Recurrent):
        size, states = _state_bytes(mixer, settings), _states(mixer, settings)
        yield LayerCache("state", block_tokens, size, (size, 0, 0), states=states)
        return
    page = block_tokens * token_bytes(mixer, settings.kv_dtype, settings.tensor_ranks)
    if isinstance(mixer, Latent):
        yield LayerCache("full", block_tokens, page, (mixer.width,))
        if mixer.indexer_width:
            indexer = mixer.indexer_bytes
            yield LayerCache("full", block_tokens, block_tokens * indexer, (indexer,))
    else:
        shape = (mixer.kv_heads, mixer.key_width, mixer.value_width)
        kind: Kind = "window" if mixer.window else "chunk" if mixer.chunk else "full"
        if settings.joins_windows:
            kind = "full"
        reach = 0 if kind == "full" else mixer.window or mixer.chunk or 0
        yield LayerCache(kind, block_tokens, page, shape, reach)


def _states(state: Recurrent, settings: CacheSettings) -> int:
    """One, one more for each drafted token, and with prefix caching one to share and a snapshot."""
    if not settings.prefix_caching:
        return 1 + settings.draft_tokens
    since, release = state.checkpoints_since, parse_version(settings.vllm)
    if release < ONE_CACHE_MODE_SINCE and state.name.startswith("Mamba"):
        raise UnknownLayoutError(f"how vLLM {settings.vllm} keeps {state.name} for prefix caching")
    return 2 + settings.draft_tokens + int(since is not None and release >= since)


def _groups(caches: Sequence[tuple[int, LayerCache]], own: frozenset[int]) -> Iterator[CacheGroup]:
    """Yield groups of layers whose pages have one size, as `unify_kv_cache_spec_page_size` makes
    them; of as many layers as the smallest kind has, or as the largest, when that is not half as
    many again.
    """
    largest = max(cache.page_bytes for _, cache in caches)
    buckets: dict[LayerCache, list[int]] = {}
    for at, cache in caches:
        buckets.setdefault(_enlarged(cache, largest), []).append(at)
    least, most = (pick(map(len, buckets.values())) for pick in (min, max))
    size = most if 2 * most < 3 * least else least
    for cache, layers in buckets.items():
        number = -(-len(layers) // size)
        for first in range(number):
            here = tuple(at for at in layers[first::number] if at in own)
            yield CacheGroup(cache, here, len(here) * cache.page_bytes)


def _is_one_type(caches: Sequence[LayerCache]) -> bool:
    kinds = {cache.kind for cache in caches}
    if len(kinds) > 1 or len({cache.block_tokens for cache in caches}) > 1:
        return False
    if kinds == {"state"}:
        return len({cache.page_bytes for cache in caches}) == 1
    return len({cache.reach_tokens for cache in caches}) == 1


def _enlarged(cache: LayerCache, largest: int) -> LayerCache:
    """A state's page is padded; a smaller page of attention takes more tokens where that comes out
    even, and is padded too where not."""
    if cache.page_bytes == largest or cache.kind == "state":
        return replace(cache, page_bytes=largest)
    if largest % cache.page_bytes == 0:
        tokens = cache.block_tokens * (largest // cache.page_bytes)
        return replace(cache, page_bytes=largest, block_tokens=tokens)
    if cache.kind == "full" and len(cache.shape) == 1:
        raise UnknownLayoutError("how latent attention shares pages with these other layers")
    return replace(cache, page_bytes=largest)


def layout_of(
    resolved: Resolved, facts: ModelFacts, *, batched_tokens: int = LARGE_BATCH_TOKENS
) -> tuple[CacheLayout | None, str]:
    """Return the KV cache's layout.

    Without a layout the text says what is not known; it is empty for a model that keeps no cache.
    Of a pipeline's stages it is that of the largest blocks, which sets their number.
    `batched_tokens` count where the recipe names none.
    """
    architecture = facts.architecture
    if architecture is None:
        return None, facts.unknown
    settings = _settings(resolved, facts, batched_tokens)
    drafting = tuple(drafting_layers(resolved.recipe, facts))
    try:
        made = [
            cache_layout(architecture, settings, drafter=drafting, stage=stage)
            for stage in stage_ranges(len(architecture.layers), facts.stages)
        ]
    except (UnknownLayoutError, RecipeError) as error:
        return None, str(error)
    known = [layout for layout in made if layout is not None]
    return max(known, key=lambda layout: layout.block_bytes, default=None), ""


def stage_ranges(layers: int, stages: int) -> Iterator[range]:
    """Yield each stage's layers as vLLM divides them (distributed/utils.py `get_pp_indices`).

    What is left over goes to the stages before the last, one layer each.
    """
    sizes = [layers // stages] * stages
    for at in range(2, layers % stages + 2):
        sizes[-at] += 1
    first = 0
    for size in sizes:
        yield range(first, first + size)
        first += size


def _settings(resolved: Resolved, facts: ModelFacts, batched_tokens: int) -> CacheSettings:
    serve, engine = resolved.recipe.serve, resolved.engine
    prefix_caching = serve.enable_prefix_caching
    if prefix_caching is None:
        # A model of states alone has none to share.
        has_attention = facts.architecture is None or facts.architecture.attention_layers > 0
        prefix_caching = has_attention and parse_version(engine.vllm) >= PREFIX_CACHING_SINCE
    block_size = value_of(serve.extra_args, "--block-size") or ""
    # vLLM schedules a step ahead on GPUs, but not for pooling (config/vllm.py, 0.32).
    is_ahead = (
        engine.runs_on != "cpu"
        and planned_answers(serve, facts.config).writes_text
        and switch_of(serve.extra_args, "--async-scheduling") is not False
    )
    joins = switch_of(serve.extra_args, "--disable-hybrid-kv-cache-manager")
    return CacheSettings(
        kv_dtype=serve.kv_cache_dtype,
        vllm=engine.vllm,
        alignment_tokens=CPU_BLOCK_TOKENS if engine.runs_on == "cpu" else CUDA_BLOCK_TOKENS,
        block_tokens=int(block_size) if block_size.isdecimal() else None,
        memory_bytes=state_element_bytes(resolved),
        batched_tokens=serve.max_num_batched_tokens or batched_tokens,
        draft_tokens=serve.speculative.tokens if serve.speculative is not None else 0,
        prefix_caching=prefix_caching,
        joins_windows=joins is True,
        tensor_ranks=facts.tensor_ranks,
        concurrent_steps=facts.stages + int(is_ahead),
    )


def state_element_bytes(resolved: Resolved) -> int | None:
    """Return the bytes of one element of a state's memory; None where the model decides.

    vLLM's CPU builds keep states in FP32 wherever they compute them fast. Its MambaDType has
    `auto`, `float32`, `float16` and `bfloat16` (config/cache.py in 0.25.1 and 0.33.0).
    """
    stated = resolved.recipe.serve.mamba_ssm_cache_dtype
    on_cpu = STATE_BYTES["float32"] if resolved.engine.runs_on == "cpu" else None
    return STATE_BYTES.get(stated, on_cpu) if stated is not None else on_cpu
