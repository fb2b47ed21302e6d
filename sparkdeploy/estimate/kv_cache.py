"""The KV cache as vLLM lays it out: pages of layers, groups of layers, blocks of one pool.

Read in vLLM 0.25.1, 0.32 and 0.33 (v1/core/kv_cache_utils.py `get_kv_cache_groups`,
v1/kv_cache_interface.py and platforms/interface.py `_align_hybrid_block_size`); tests hold it
against logs of real vLLMs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from sparkdeploy.checkpoint.layers import Attention, Latent, Recurrent
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.releases import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.checkpoint.layers import Architecture, Layer, Mixer

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
_BF16: Final = ("auto", "bfloat16", "float16", "half")
_TURBOQUANT_BITS: Final = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
_DS_MLA_BYTES = 656
"""Of a token of a sparse latent cache: 512 FP8 elements, their scales, and 64 of BF16."""

Kind = Literal["full", "window", "chunk", "state"]


class UnknownLayoutError(Exception):
    """Layers that vLLM puts into pages in a way that the planner does not know."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What decides a layout beside the model."""

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
    """Layers with one table of blocks."""

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
        """Return the tokens of a block of attention; 0 for a model without any."""
        sizes = [it.cache.block_tokens for it in self.groups if it.cache.kind != "state"]
        return max(sizes, default=0)

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token in all layers whose cache grows with the context."""
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


def token_bytes(mixer: Mixer, kv_dtype: str, ranks: int = 1) -> int:
    """Return a token's bytes in one layer of one rank, a latent layer's indexer apart.

    Heads divide down to one that ranks repeat. Raises RecipeError for an unknown format.
    """
    if isinstance(mixer, Attention):
        heads = max(1, mixer.kv_heads // ranks)
        return heads * slot_bytes(kv_dtype, mixer.key_width, mixer.value_width)
    if not isinstance(mixer, Latent):
        return 0
    if kv_dtype in _BF16:
        return 2 * mixer.width
    if kv_dtype == "fp8_ds_mla" or (kv_dtype.startswith("fp8") and mixer.indexer_width):
        return _DS_MLA_BYTES
    if kv_dtype.startswith("fp8"):
        return mixer.width
    raise RecipeError(
        f"a latent cache (MLA) has no format {kv_dtype}", hint="known: auto, bfloat16, fp8"
    )


def slot_bytes(kv_dtype: str, key_width: int, value_width: int) -> int:
    """Return what key and value of one head take for one token; widths are elements.

    TurboQuant's slots are those of vLLM's turboquant/config.py: an FP8 key is stored as it is, a
    quantised key has a 2-byte norm, a value 4 bytes of scale and zero point; 388, 262, 230 and
    198 bytes for heads of 256. NVFP4 has half a byte an element and a scale for each 16. Raises
    RecipeError for an unknown format.
    """
    both = key_width + value_width
    if kv_dtype in _BF16:
        return 2 * both
    if kv_dtype.endswith("_per_token_head"):
        # An FP32 scale for the key and one for the value (vLLM's triton_attn.py).
        return (both // 2 if kv_dtype.startswith("int4") else both) + 8
    if kv_dtype.startswith("fp8"):
        return both
    if kv_dtype == "nvfp4":
        return sum(width // 2 + width // 16 for width in (key_width, value_width))
    if kv_dtype not in _TURBOQUANT_BITS:
        raise RecipeError(
            f"the bytes of a {kv_dtype} KV cache are not known",
            hint="known: auto, bfloat16, fp8, nvfp4, int8_per_token_head, "
            + ", ".join(_TURBOQUANT_BITS),
        )
    key_bits, value_bits = _TURBOQUANT_BITS[kv_dtype]
    key = key_width if key_bits == 8 else -(-key_width * key_bits // 8) + 2
    slot = key + -(-value_width * value_bits // 8) + 4
    return slot + slot % 2


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
