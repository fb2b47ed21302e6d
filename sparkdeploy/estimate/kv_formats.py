"""Bytes of a token in the KV cache, by the cache's format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparkdeploy.errors import RecipeError

if TYPE_CHECKING:
    from sparkdeploy.checkpoint.family.layers import Latent

_BF16 = ("auto", "bfloat16", "float16", "half")
_TURBOQUANT_BITS: Final = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
_DS_MLA_BYTES = 656
"""Of a token of a sparse latent cache: 512 FP8 elements, their scales, and 64 of BF16."""


def slot_bytes(kv_dtype: str, key_width: int, value_width: int | None = None) -> int:
    """Return what key and value of one head take for one token; widths are elements.

    TurboQuant's slots are those of vLLM's turboquant/config.py: an FP8 key is stored as it is, a
    quantised key has a 2-byte norm, a value 4 bytes of scale and zero point; 388, 262, 230 and
    198 bytes for heads of 256. NVFP4 has half a byte an element and a scale for each 16. Raises
    RecipeError for an unknown format.
    """
    wide = key_width if value_width is None else value_width
    if kv_dtype in _BF16:
        return 2 * (key_width + wide)
    if kv_dtype.endswith("_per_token_head"):
        # An FP32 scale for the key and one for the value (vLLM's triton_attn.py).
        values = (key_width + wide) // 2 if kv_dtype.startswith("int4") else key_width + wide
        return values + 8
    if kv_dtype.startswith("fp8"):
        return key_width + wide
    if kv_dtype == "nvfp4":
        return sum(width // 2 + width // 16 for width in (key_width, wide))
    if kv_dtype not in _TURBOQUANT_BITS:
        raise RecipeError(
            f"the bytes of a {kv_dtype} KV cache are not known",
            hint="known: auto, bfloat16, fp8, nvfp4, int8_per_token_head, "
            + ", ".join(_TURBOQUANT_BITS),
        )
    key_bits, value_bits = _TURBOQUANT_BITS[kv_dtype]
    key = key_width if key_bits == 8 else -(-key_width * key_bits // 8) + 2
    slot = key + -(-wide * value_bits // 8) + 4
    return slot + slot % 2


def latent_bytes(kv_dtype: str, latent: Latent) -> int:
    """Return what a token takes in one latent layer, its indexer apart.

    Raises RecipeError for a format that vLLM's latent caches do not have.
    """
    if kv_dtype in _BF16:
        return 2 * latent.width
    if kv_dtype == "fp8_ds_mla" or (kv_dtype.startswith("fp8") and latent.indexer_width):
        return _DS_MLA_BYTES
    if kv_dtype.startswith("fp8"):
        return latent.width
    raise RecipeError(
        f"a latent cache (MLA) has no format {kv_dtype}", hint="known: auto, bfloat16, fp8"
    )
