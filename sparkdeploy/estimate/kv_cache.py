"""The KV cache as vLLM lays it out: pages that attention and DeltaNet layers share, and groups.

Read in vLLM 0.25.1 and 0.32 (platforms/interface.py `_align_hybrid_block_size` and
v1/core/kv_cache_utils.py); a test holds it against the log of a real vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.features import parse_version

if TYPE_CHECKING:
    from sparkdeploy.estimate.model_facts import Architecture

CUDA_BLOCK_TOKENS = 16
"""A block is a multiple of this many tokens with FlashAttention, FlashInfer and TurboQuant."""
CONTEXT_AWARE_SINCE = (0, 20, 0)
PREFIX_CACHING_SINCE = (0, 29, 0)
"""Off for hybrid models in 0.25.1, on in 0.32 (read in code); in between nobody here looked."""

_BF16 = ("auto", "bfloat16", "float16")
_TURBOQUANT_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


def slot_bytes(kv_dtype: str, head_dim: int) -> int:
    """Return what key and value of one head take for one token.

    TurboQuant's slots are those of vLLM's turboquant/config.py: an FP8 key is stored as it is, a
    quantised key has a 2-byte norm, a value 4 bytes of scale and zero point; 388, 262, 230 and
    198 bytes for heads of 256. Raises RecipeError for an unknown dtype.
    """
    if kv_dtype in _BF16:
        return 4 * head_dim
    if kv_dtype.startswith("fp8"):
        return 2 * head_dim
    if kv_dtype not in _TURBOQUANT_BITS:
        raise RecipeError(
            f"the bytes of a {kv_dtype} KV cache are not known",
            hint="known: auto, bfloat16, fp8, " + ", ".join(_TURBOQUANT_BITS),
        )
    key_bits, value_bits = _TURBOQUANT_BITS[kv_dtype]
    key = head_dim if key_bits == 8 else -(-head_dim * key_bits // 8) + 2
    slot = key + -(-head_dim * value_bits // 8) + 4
    return slot + slot % 2


def state_bytes(architecture: Architecture, draft_tokens: int) -> int:
    """Return one DeltaNet layer's state: its convolution's window in BF16, the rest in FP32."""
    a = architecture
    window = (a.linear_conv_kernel_dim - 1 + draft_tokens) * a.convolved_width * 2
    matrix = a.linear_num_value_heads * a.linear_value_head_dim * a.linear_key_head_dim * 4
    return window + matrix if a.linear_attention_layers else 0


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Blocks of one pool; a block holds a page for each of `group_layers` layers."""

    block_tokens: int
    page_bytes: int
    state_bytes: int
    token_bytes: int
    """Of one token in one full-attention layer."""
    attention_layers: int
    group_layers: int
    attention_groups: int
    state_groups: int
    states_per_request: int
    """Pages of state that a request holds in each group: one, one more for each drafted token, and
    one more with prefix caching."""

    @property
    def groups(self) -> int:
        return self.attention_groups + self.state_groups

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token in all layers whose cache grows with the context."""
        return self.token_bytes * self.attention_layers

    @property
    def request_state_bytes(self) -> int:
        """Return the pages that a request's states occupy: groups x states x layers of a group."""
        pages = self.state_groups * self.states_per_request * self.group_layers
        return pages * self.page_bytes

    def blocks(self, available_bytes: int) -> int:
        return max(0, available_bytes) // self.page_bytes // self.group_layers

    def blocks_per_request(self, context_tokens: int) -> int:
        """Return the blocks of a request of this length: whole ones in every group."""
        attention = self.attention_groups * -(-context_tokens // self.block_tokens)
        return attention + self.state_groups * self.states_per_request

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
            return self.blocks(available_bytes) // self.groups * self.block_tokens
        return self.tokens(available_bytes, max_model_len)


def cache_layout(
    architecture: Architecture,
    *,
    kv_dtype: str,
    draft_layers: int = 0,
    draft_tokens: int = 0,
    prefix_caching: bool = False,
    alignment_tokens: int = CUDA_BLOCK_TOKENS,
) -> CacheLayout:
    """Return the layout for a model; a draft layer's cache joins the full-attention layers'."""
    per_token = architecture.num_key_value_heads * slot_bytes(kv_dtype, architecture.head_dim)
    state = state_bytes(architecture, draft_tokens)
    # All pages have one size, so a block has as many tokens as fill the state of a DeltaNet layer.
    block = alignment_tokens * max(1, -(-state // (alignment_tokens * per_token)))
    attention = architecture.full_attention_layers + draft_layers
    group = _group_layers(attention, architecture.linear_attention_layers)
    return CacheLayout(
        block_tokens=block,
        page_bytes=block * per_token,
        state_bytes=state,
        token_bytes=per_token,
        attention_layers=attention,
        group_layers=group,
        attention_groups=-(-attention // group),
        state_groups=-(-architecture.linear_attention_layers // group),
        states_per_request=1 + draft_tokens + int(prefix_caching),
    )


def _group_layers(attention: int, linear: int) -> int:
    """The smaller number of layers, or the larger one when it is not half as large again."""
    if 0 in {attention, linear}:
        return max(attention, linear)
    least, most = sorted((attention, linear))
    return most if 2 * most < 3 * least else least
