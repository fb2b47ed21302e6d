"""The bytes of a checkpoint by kind as formulas of its architecture: what headers must count to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sparkdeploy.estimate.model import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

Architecture = SimpleNamespace
"""The configuration's keys, and a few that follow from them."""

BF16_BYTES = 2
FP32_BYTES = 4
INT4_GROUP = 128
"""Inputs that share a scale in Intel's checkpoint."""
VISION_PATCH_ELEMENTS = 3 * 2 * 16 * 16
"""Colours x frames x height x width of a patch of Qwen3-VL's tower."""


def sizes_of(config: Mapping[str, Any]) -> Architecture:
    text, vision = config["text_config"], config.get("vision_config", {})
    layers = text["num_hidden_layers"]
    full = layers // text.get("full_attention_interval", 4)
    values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    return SimpleNamespace(
        **text,
        layers=layers,
        full_attention_layers=full,
        linear_attention_layers=layers - full,
        convolved_width=2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + values,
        vision_depth=vision.get("depth", 0),
        vision_hidden_size=vision.get("hidden_size", 0),
        vision_intermediate_size=vision.get("intermediate_size", 0),
        vision_positions=vision.get("num_position_embeddings", 0),
    )


def derive_weights(config: Mapping[str, Any]) -> Mapping[WeightKind, int]:
    """Return bytes by kind of Intel's INT4 checkpoint with this config.json.

    INT4 are routed experts, attention and DeltaNet; all else has 16 bits, except DeltaNet's decay
    and norm in FP32. That in_proj_a and in_proj_b
    are packed is an assumption.
    """
    a = sizes_of(config)
    expert = 3 * _packed(a.moe_intermediate_size, a.hidden_size)
    shared = 3 * a.shared_expert_intermediate_size * a.hidden_size * BF16_BYTES
    router = (a.num_experts + 1) * a.hidden_size * BF16_BYTES
    attention = sum(_packed(outputs, inputs) for outputs, inputs in _attention_shapes(a))
    by_token = a.vocab_size * a.hidden_size * BF16_BYTES
    layer_norms = 2 * a.hidden_size * BF16_BYTES
    head_norms = 2 * a.head_dim * BF16_BYTES
    sizes = {
        WeightKind.EXPERTS: a.layers * a.num_experts * expert,
        WeightKind.SHARED_EXPERTS: a.layers * shared,
        WeightKind.ROUTER: a.layers * router,
        WeightKind.ATTENTION: a.full_attention_layers * attention,
        WeightKind.GDN: a.linear_attention_layers * _gdn_layer(a),
        WeightKind.NORMS: a.layers * layer_norms
        + a.full_attention_layers * head_norms
        + a.hidden_size * BF16_BYTES,
        WeightKind.EMBEDDINGS: by_token,
        WeightKind.LM_HEAD: by_token,
        **_mtp(a, dense=shared + router + layer_norms + head_norms),
        WeightKind.VISION: _vision(a),
    }
    return {kind: size for kind, size in sizes.items() if size}


def _packed(outputs: int, inputs: int) -> int:
    """Half a byte a weight; a group has an FP16 scale and a 4-bit zero point for each output."""
    groups = inputs // INT4_GROUP
    return outputs * inputs // 2 + groups * outputs * 2 + groups * outputs // 2


def _attention_shapes(a: Architecture) -> tuple[tuple[int, int], ...]:
    """Outputs and inputs of q (with its gate), k, v and o."""
    queries, keys = a.num_attention_heads * a.head_dim, a.num_key_value_heads * a.head_dim
    hidden = a.hidden_size
    return (2 * queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)


def _gdn_layer(a: Architecture) -> int:
    heads = a.linear_num_value_heads
    values = heads * a.linear_value_head_dim
    linears = ((a.convolved_width, a.hidden_size), (values, a.hidden_size), (a.hidden_size, values))
    gates = 2 * _packed(heads, a.hidden_size)
    if heads % 32:
        gates = 2 * heads * a.hidden_size * BF16_BYTES
    convolution = a.convolved_width * a.linear_conv_kernel_dim * BF16_BYTES
    decay_bias_norm = heads * (FP32_BYTES + BF16_BYTES) + a.linear_value_head_dim * FP32_BYTES
    packed = sum(_packed(*shape) for shape in linears)
    total: int = packed + gates + convolution + decay_bias_norm
    return total


def _mtp(a: Architecture, *, dense: int) -> Mapping[WeightKind, int]:
    """The draft layer is all BF16; outside it stand fc and three norms."""
    attention = sum(outputs * inputs for outputs, inputs in _attention_shapes(a)) * BF16_BYTES
    experts = 3 * a.num_experts * a.moe_intermediate_size * a.hidden_size * BF16_BYTES
    outside = (2 * a.hidden_size + 3) * a.hidden_size * BF16_BYTES
    layers = a.mtp_num_hidden_layers
    return {
        WeightKind.MTP_EXPERTS: layers * experts,
        WeightKind.MTP_DENSE: layers * (dense + attention) + (outside if layers else 0),
    }


def _vision(a: Architecture) -> int:
    """Blocks of 12 tensors, a patch embedding, positions and a merger of 2 x 2 patches."""
    width, wide, merged = a.vision_hidden_size, a.vision_intermediate_size, 4 * a.vision_hidden_size
    block = 4 * width * width + 4 * width + 2 * width * wide + wide + width + 4 * width
    patch = width * (VISION_PATCH_ELEMENTS + 1)
    merger = 2 * width + merged * (merged + 1) + a.hidden_size * (merged + 1)
    elements = a.vision_depth * block + patch + a.vision_positions * width + merger
    return elements * BF16_BYTES if a.vision_depth else 0
