"""The bytes of one token in a KV cache, by the cache's format."""

from typing import Final

from sparkdeploy.checkpoint.layers import Attention, Latent, Mixer
from sparkdeploy.errors import RecipeError

_BF16: Final = ("auto", "bfloat16", "float16", "half")
_TURBOQUANT_BITS: Final = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
_DS_MLA_BYTES = 656
"""Of a token of a sparse latent cache: 512 FP8 elements, their scales, and 64 of BF16."""


def token_bytes(mixer: Mixer, kv_dtype: str, ranks: int = 1) -> int:
    """Return a token's bytes in one layer of one rank; ranks may repeat the last head."""
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
