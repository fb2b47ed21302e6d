"""What weights take in memory once vLLM has loaded them, beside what they take in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.family.layers import Attention, Latent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.checkpoint.family.layers import Architecture
    from sparkdeploy.checkpoint.safetensors import TensorInfo


ROTARY_TABLES = "rotary_emb.cos_sin_cache"


def bytes_in_memory(
    tensors: Sequence[TensorInfo], architecture: Architecture | None
) -> Iterator[tuple[str, int]]:
    """Yield names with the bytes that vLLM holds of them on one GPU.

    Embeddings and head are not padded to whole tiles of 64 rows here: it is less than a thousandth.
    """
    ties = architecture is not None and architecture.ties_embeddings
    for tensor in tensors:
        # A head that is stored and tied is loaded once, as the embeddings.
        if not (ties and tensor.name.startswith("lm_head.")):
            yield tensor.name, _held(tensor)
    if architecture is not None:
        yield from _unfolded(architecture)
        yield ROTARY_TABLES, _rotary_bytes(architecture)


def _held(tensor: TensorInfo) -> int:
    """A matrix of FP32 is loaded in the model's 16 bits; scales and vectors stay as they are."""
    is_matrix = len(tensor.shape) > 1 and "scale" not in tensor.name
    return tensor.size_bytes // 2 if is_matrix and tensor.dtype == "F32" else tensor.size_bytes


def _unfolded(architecture: Architecture) -> Iterator[tuple[str, int]]:
    """MLA keeps the two halves of kv_b_proj once more, in 16 bits, to decode with."""
    for at, layer in enumerate(architecture.layers):
        for mixer in layer.mixers:
            if isinstance(mixer, Latent):
                elements = mixer.query_heads * mixer.head_width * mixer.rank
                yield f"model.layers.{at}.self_attn.kv_b_proj.weight", 2 * elements


def _rotary_bytes(architecture: Architecture) -> int:
    """A row of FP32 for each position; layers with windows and those without have own tables."""
    widths = {
        (mixer.rope_width, True) if isinstance(mixer, Latent) else (mixer.key_width, mixer.grows)
        for layer in architecture.layers
        for mixer in layer.mixers
        if isinstance(mixer, Latent | Attention)
    }
    return 4 * architecture.max_position_embeddings * sum(width for width, _ in widths)
