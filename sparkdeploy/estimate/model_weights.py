"""Weight bytes by kind, counted from safetensors headers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sparkdeploy.estimate.model_facts import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sparkdeploy.checkpoint.safetensors import TensorInfo


def kind_of(name: str) -> Kind:
    """Return what a tensor of a Qwen3.5 checkpoint belongs to (names: vllm.md section E)."""
    if name.startswith("mtp."):
        return Kind.MTP_EXPERTS if ".mlp.experts." in name else Kind.MTP_DENSE
    for part, kind in _PARTS:
        if part in name:
            return kind
    return Kind.OTHER


_PARTS = (
    (".visual.", Kind.VISION),
    ("lm_head.", Kind.LM_HEAD),
    (".embed_tokens.", Kind.EMBEDDINGS),
    (".mlp.experts.", Kind.EXPERTS),
    (".mlp.shared_expert.", Kind.SHARED_EXPERTS),
    (".mlp.shared_expert_gate.", Kind.ROUTER),
    (".mlp.gate.", Kind.ROUTER),
    (".linear_attn.", Kind.GDN),
    ("_norm.", Kind.NORMS),
    (".self_attn.", Kind.ATTENTION),
    ("layernorm.", Kind.NORMS),
    (".norm.", Kind.NORMS),
)
"""In order: DeltaNet's own norm is DeltaNet's, and q_norm is a norm although in attention."""


def weights_of(tensors: Iterable[TensorInfo]) -> Mapping[Kind, int]:
    """Return bytes by kind; they add up to the bytes of all tensors."""
    found: Counter[Kind] = Counter()
    for tensor in tensors:
        found[kind_of(tensor.name)] += tensor.size_bytes
    return {kind: found[kind] for kind in Kind if found[kind]}
