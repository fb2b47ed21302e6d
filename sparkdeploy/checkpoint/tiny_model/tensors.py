"""Every tensor of a twin: names, dtypes and shapes as in Intel's INT4 checkpoint of Qwen3.5 MoE."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from sparkdeploy.checkpoint.conversion import GROUP
from sparkdeploy.checkpoint.safetensors import TensorData
from sparkdeploy.checkpoint.tiny_model import grammar, values
from sparkdeploy.checkpoint.tiny_model.grammar import Grammar
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape

Tensors = Mapping[str, TensorData]
Size = tuple[int, ...]

TEXT_PREFIX = "model.language_model"
VISION_PATCH = 16
VISION_POSITIONS = 64

_BLOCK_GAIN = 0.08
"""How far a block of random weights moves the residual stream, whose embeddings have size 1."""
_SYMMETRIC_ZERO_POINT = 0x77777777
"""Eight zero points of 8, each stored less one: what auto_gptq writes for symmetric weights."""


def language_tensors(text: Grammar) -> Tensors:
    """The language model with its head: what the numbered shards hold besides the vision tower."""
    shape = text.shape
    make = _Maker(shape, text.seed)
    by_token = (shape.vocab, shape.hidden)
    tensors: dict[str, TensorData] = {
        f"{TEXT_PREFIX}.embed_tokens.weight": ("BF16", by_token, text.embeddings),
        **make.offset_norms(shape.hidden, f"{TEXT_PREFIX}.norm"),
        "lm_head.weight": ("BF16", by_token, text.head),
    }
    for layer, kind in enumerate(shape.layer_types):
        name = f"{TEXT_PREFIX}.layers.{layer}"
        mixer = _linear_attention if kind == "linear_attention" else _full_attention
        tensors |= make.layer_offset_norms(name)
        tensors |= mixer(make, name)
        tensors |= _mlp(make, f"{name}.mlp", shape.expert_format)
    for part, change in grammar.remembering(shape).items():
        name = f"{TEXT_PREFIX}.layers.0.linear_attn.{part}"
        tensors[name] = make.adjusted(tensors[name], change)
    return tensors


def mtp_tensors(shape: TinyShape, seed: int) -> Tensors:
    """The draft layer, all BF16: three tensors an expert and 17 others."""
    make = _Maker(shape, seed)
    layer, hidden = "mtp.layers.0", shape.hidden
    tensors = {
        "mtp.fc.weight": make.adjusted(
            make.normal("mtp.fc.weight", (hidden, 2 * hidden), std=0.2 / math.sqrt(2 * hidden)),
            partial(grammar.draft_projection, hidden=hidden),
        ),
        **make.offset_norms(hidden, "mtp.norm"),
        **make.offset_norms(hidden, "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding"),
        **make.layer_offset_norms(layer),
        **_mlp(make, f"{layer}.mlp", "bf16"),
        **_attention_norms(make, f"{layer}.self_attn"),
    }
    for name, outputs, inputs, gain in _attention_linears(shape):
        tensors.update(make.linear(f"{layer}.self_attn.{name}", outputs, inputs, gain=gain))
    return tensors


def vision_tensors(shape: TinyShape, seed: int) -> Tensors:
    """The vision tower: 12 tensors a block and 9 others."""
    make = _Maker(shape, seed)
    width, merged = shape.vision_hidden, 4 * shape.vision_hidden
    prefix = "model.visual"
    patch = (width, 3, 2, VISION_PATCH, VISION_PATCH)
    positions = f"{prefix}.pos_embed.weight"
    tensors = {
        **make.biased(f"{prefix}.patch_embed.proj", patch),
        positions: make.normal(positions, (VISION_POSITIONS, width), std=0.1),
        **make.layer_norm(f"{prefix}.merger.norm", width),
        **make.biased(f"{prefix}.merger.linear_fc1", (merged, merged)),
        **make.biased(f"{prefix}.merger.linear_fc2", (shape.hidden, merged)),
    }
    for block in range(shape.vision_depth):
        name = f"{prefix}.blocks.{block}"
        tensors |= make.layer_norm(f"{name}.norm1", width)
        tensors |= make.layer_norm(f"{name}.norm2", width)
        tensors |= make.biased(f"{name}.attn.qkv", (3 * width, width))
        tensors |= make.biased(f"{name}.attn.proj", (width, width))
        tensors |= make.biased(f"{name}.mlp.linear_fc1", (2 * width, width))
        tensors |= make.biased(f"{name}.mlp.linear_fc2", (width, 2 * width))
    return tensors


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes tensors whose values wait until they are written."""

    shape: TinyShape
    seed: int

    def normal(self, name: str, shape: Size, *, std: float, mean: float = 0.0) -> TensorData:
        count = math.prod(shape)
        draw = partial(values.normal_bf16, self.seed, name, count=count, std=std, mean=mean)
        return "BF16", shape, draw

    def uniform(self, name: str, count: int, *, low: float, high: float) -> TensorData:
        draw = partial(values.uniform_f32, self.seed, name, count=count, low=low, high=high)
        return "F32", (count,), draw

    def offset_norms(self, width: int, *names: str) -> Tensors:
        """RMS norms that multiply by one plus their weight."""
        weights = [f"{name}.weight" for name in names]
        return {weight: self.normal(weight, (width,), std=0.05) for weight in weights}

    def layer_offset_norms(self, layer: str) -> Tensors:
        names = (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        return self.offset_norms(self.shape.hidden, *names)

    def linear(self, name: str, outputs: int, inputs: int, *, gain: float = 1.0) -> Tensors:
        weight = f"{name}.weight"
        return {weight: self.normal(weight, (outputs, inputs), std=gain / math.sqrt(inputs))}

    def packed(self, name: str, outputs: int, inputs: int, *, gain: float = 1.0) -> Tensors:
        """An INT4 linear layer, packed along its inputs as auto_gptq does."""
        groups, std = inputs // GROUP, gain / math.sqrt(inputs)
        words, scales = f"{name}.qweight", f"{name}.scales"
        zeros = _SYMMETRIC_ZERO_POINT.to_bytes(4, "little") * (groups * outputs // 8)
        draw_words = partial(values.int4_words, self.seed, words, count=inputs // 8 * outputs)
        draw_scales = partial(values.int4_scales_f16, self.seed, scales, count=groups * outputs)
        return {
            words: ("I32", (inputs // 8, outputs), draw_words),
            f"{name}.qzeros": ("I32", (groups, outputs // 8), zeros),
            scales: ("F16", (groups, outputs), partial(draw_scales, std=std)),
        }

    def biased(self, name: str, shape: Size, *, gain: float = 1.0, mean: float = 0.0) -> Tensors:
        weight, bias = f"{name}.weight", f"{name}.bias"
        std = gain / math.sqrt(math.prod(shape[1:]))
        return {
            weight: self.normal(weight, shape, std=std, mean=mean),
            bias: self.normal(bias, shape[:1], std=0.02),
        }

    def layer_norm(self, name: str, width: int) -> Tensors:
        return self.biased(name, (width,), gain=0.05, mean=1.0)

    def adjusted(self, data: TensorData, adjust: Callable[[bytes], bytes]) -> TensorData:
        dtype, shape, payload = data
        return dtype, shape, lambda: adjust(payload if isinstance(payload, bytes) else payload())


def _full_attention(make: _Maker, layer: str) -> Tensors:
    tensors = dict(_attention_norms(make, f"{layer}.self_attn"))
    for name, outputs, inputs, gain in _attention_linears(make.shape):
        tensors.update(make.packed(f"{layer}.self_attn.{name}", outputs, inputs, gain=gain))
    return tensors


def _attention_norms(make: _Maker, attention: str) -> Tensors:
    return make.offset_norms(make.shape.head_dim, f"{attention}.q_norm", f"{attention}.k_norm")


def _attention_linears(shape: TinyShape) -> Iterator[tuple[str, int, int, float]]:
    queries, keys = shape.attention_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Queries come with an output gate of the same width.
    yield "q_proj", 2 * queries, shape.hidden, 1.0
    yield "k_proj", keys, shape.hidden, 1.0
    yield "v_proj", keys, shape.hidden, 1.0
    yield "o_proj", shape.hidden, queries, _BLOCK_GAIN * 2


def _linear_attention(make: _Maker, layer: str) -> Tensors:
    shape, name = make.shape, f"{layer}.linear_attn"
    heads, values_width = shape.linear_value_heads, shape.linear_value_width
    qkv = 2 * shape.linear_key_width + values_width
    gate_linear = make.packed if shape.in_proj_ab_is_packed else make.linear
    conv, decay, bias = f"{name}.conv1d.weight", f"{name}.A_log", f"{name}.dt_bias"
    norm = f"{name}.norm.weight"
    return {
        **make.packed(f"{name}.in_proj_qkv", qkv, shape.hidden),
        **make.packed(f"{name}.in_proj_z", values_width, shape.hidden),
        **gate_linear(f"{name}.in_proj_b", heads, shape.hidden),
        **gate_linear(f"{name}.in_proj_a", heads, shape.hidden),
        **make.packed(f"{name}.out_proj", shape.hidden, values_width, gain=_BLOCK_GAIN),
        conv: make.normal(conv, (qkv, 1, shape.conv_kernel), std=0.5),
        decay: make.uniform(decay, heads, low=-4.0, high=0.0),
        bias: make.normal(bias, (heads,), std=0.5),
        norm: make.uniform(norm, shape.linear_head_dim, low=0.9, high=1.1),
    }


def _mlp(make: _Maker, name: str, experts: str) -> Tensors:
    shape = make.shape
    expert_linear = make.packed if experts == "int4" else make.linear
    tensors = {
        **make.linear(f"{name}.gate", shape.experts, shape.hidden),
        **make.linear(f"{name}.shared_expert_gate", 1, shape.hidden),
    }
    for linear, outputs, inputs, gain in _gated(shape.hidden, shape.shared_expert_intermediate):
        tensors |= make.linear(f"{name}.shared_expert.{linear}", outputs, inputs, gain=gain)
    for expert in range(shape.experts):
        for linear, outputs, inputs, gain in _gated(shape.hidden, shape.expert_intermediate):
            expert_name = f"{name}.experts.{expert}.{linear}"
            tensors |= expert_linear(expert_name, outputs, inputs, gain=gain)
    return tensors


def _gated(hidden: int, intermediate: int) -> Iterator[tuple[str, int, int, float]]:
    yield "gate_proj", intermediate, hidden, 1.0
    yield "up_proj", intermediate, hidden, 1.0
    yield "down_proj", hidden, intermediate, _BLOCK_GAIN * 2
