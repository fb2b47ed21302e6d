"""The dense layers that a checkpoint leaves at 16 bits: what `fp8_dense` makes FP8 while loading.

By their tensors' names, which engines keep, and dtypes. Routers, gates, norms, convolutions,
embeddings, heads, towers and draft layers are never among them, nor is what multi-head latent
attention takes apart (`kv_b_proj`), nor the small projections of Gated DeltaNet's gates.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sparkdeploy.checkpoint.safetensors import TensorInfo

_PROJECTIONS = frozenset(
    (
        *("q_proj", "k_proj", "v_proj", "o_proj", "q_b_proj", "qkv_proj", "query_key_value"),
        *("in_proj", "in_proj_qkvz", "in_proj_qkv", "in_proj_z", "out_proj"),
        *("gate_proj", "up_proj", "down_proj", "gate_up_proj"),
        *("dense", "dense_h_to_4h", "dense_4h_to_h"),
    )
)
_LAYER = re.compile(r"(?<![^.])layers\.(\d{1,9})\.", re.ASCII)
_NEVER = re.compile(
    r"(?:^|\.)(?:vision\w*|visual|audio\w*|\w+_tower|encoder|mtp|nextn|experts|indexer|pooler)\."
    r"|\.mtp_|^mtp_",
    re.ASCII,
)
_FUSED = (
    {"q_proj", "k_proj", "v_proj"},
    {"gate_proj", "up_proj"},
    {"in_proj_qkv", "in_proj_z"},
)
"""What an engine makes one layer of, which is FP8 as a whole or not at all."""
_STEP = 16
"""Rows and columns of what GPUs' FP8 kernels take."""


def dense_layers(config: Mapping[str, Any], tensors: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    """Return the modules of a checkpoint, in its order, whose 16-bit `weight` can become FP8."""
    text = config.get("text_config", config)
    count = text.get("num_hidden_layers") if isinstance(text, dict) else None
    found: dict[str, TensorInfo] = {}
    stems: dict[str, set[str]] = defaultdict(set)
    for tensor in tensors:
        module, _, what = tensor.name.rpartition(".")
        stem, _, last = module.rpartition(".")
        layers = _LAYER.findall(f"{stem}.")
        if last not in _PROJECTIONS or not layers or _NEVER.search(tensor.name):
            continue
        # Layers beyond those that are counted draft, as DeepSeek and GLM store them.
        if type(count) is int and int(layers[-1]) >= count:
            continue
        stems[stem].add(last)
        if what == "weight" and _is_convertible(tensor):
            found[module] = tensor
    return {name: info for name, info in found.items() if _is_whole(name, found, stems)}


def _is_convertible(tensor: TensorInfo) -> bool:
    return (
        tensor.dtype in ("BF16", "F16")
        and len(tensor.shape) == 2
        and not any(size % _STEP for size in tensor.shape)
    )


def _is_whole(module: str, found: Mapping[str, TensorInfo], stems: Mapping[str, set[str]]) -> bool:
    """Whether all that an engine fuses with a module can become FP8, too."""
    stem, _, last = module.rpartition(".")
    group = next((names for names in _FUSED if last in names), {last})
    return all(f"{stem}.{name}" in found for name in group & stems[stem])
