"""The tensors that a config.json promises: names and shapes at 16 bits, for families known by name.

Names are those of the published checkpoints, behind the prefix that each repository has for its
language model. Shapes are elements, outputs before inputs. Read in vLLM's `load_weights` of each
model file (0.25.1 to 0.33), held against files of the twin and against vLLM's own parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sparkdeploy.checkpoint.architecture import architecture_of, config_sizes
from sparkdeploy.checkpoint.layers import Attention, Latent, Recurrent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from sparkdeploy.checkpoint.architecture import ConfigSizes
    from sparkdeploy.checkpoint.layers import Architecture, Experts, Layer, Mixer

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Promised:
    """One tensor of a checkpoint, without the prefix of its language model."""

    name: str
    shape: Shape
    is_linear: bool = False
    """Whether it is a layer's matrix, which quantisation packs."""


_NORMS_AROUND: Final = {
    "gemma2": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "gemma3": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "gemma3_text": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
}
_HEAD_NORMS: Final = frozenset(
    {
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "gemma3",
        "gemma3_text",
    }
)
_BIASED: Final = {"qwen2": "qkv", "qwen2_moe": "qkv", "gpt_oss": "qkvo"}
_KNOWN: Final = _HEAD_NORMS | {
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "gemma2",
    "gpt_oss",
    "glm4_moe",
    "minimax_m2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "kimi_k2",
    "nemotron_h",
}
"""Model types whose names of tensors are known; of others only the layers are."""


def promised_tensors(config: Mapping[str, Any]) -> list[Promised] | None:
    """Return what a checkpoint of the language model has; None for a family not known so far.

    Raises CheckpointError for numbers that are missing or that no model has, and
    UnknownArchitectureError as `architecture_of` does.
    """
    architecture, sizes = architecture_of(config), config_sizes(config)
    if architecture.model_type not in _KNOWN:
        return None
    return [*_ends(architecture), *_layers(architecture, sizes)]


def _ends(architecture: Architecture) -> Iterator[Promised]:
    rows = (architecture.vocab_size, architecture.hidden_size)
    is_mamba = architecture.model_type == "nemotron_h"
    yield Promised("embeddings.weight" if is_mamba else "embed_tokens.weight", rows)
    yield Promised("norm_f.weight" if is_mamba else "norm.weight", rows[1:])
    if not architecture.ties_embeddings:
        yield Promised("lm_head.weight", rows)


def _layers(architecture: Architecture, sizes: ConfigSizes) -> Iterator[Promised]:
    for at, layer in enumerate(architecture.layers):
        of_layer = _of_nemotron if architecture.model_type == "nemotron_h" else _of_layer
        for item in of_layer(architecture, sizes, layer):
            yield Promised(f"layers.{at}.{item.name}", item.shape, item.is_linear)


def _of_layer(architecture: Architecture, sizes: ConfigSizes, layer: Layer) -> Iterator[Promised]:
    hidden, model_type = architecture.hidden_size, architecture.model_type
    norms = ("input_layernorm", "post_attention_layernorm", *_NORMS_AROUND.get(model_type, ()))
    yield from (Promised(f"{name}.weight", (hidden,)) for name in norms)
    for mixer in layer.mixers:
        yield from _of_mixer(architecture, sizes, mixer)
    if layer.experts is None:
        width = sizes.number("intermediate_size")
        yield from _gated("mlp", hidden, width)
    else:
        yield from _experts_of(model_type)(architecture, sizes, layer.experts)


def _gated(prefix: str, hidden: int, width: int) -> Iterator[Promised]:
    yield Promised(f"{prefix}.gate_proj.weight", (width, hidden), is_linear=True)
    yield Promised(f"{prefix}.up_proj.weight", (width, hidden), is_linear=True)
    yield Promised(f"{prefix}.down_proj.weight", (hidden, width), is_linear=True)


def _of_mixer(architecture: Architecture, sizes: ConfigSizes, mixer: Mixer) -> Iterator[Promised]:
    if isinstance(mixer, Latent):
        yield from _latent(architecture, sizes, mixer)
    elif isinstance(mixer, Recurrent):
        yield from _gated_delta_net(architecture, sizes, mixer)
    else:
        yield from _attention(architecture, sizes, mixer)


def _attention(
    architecture: Architecture, sizes: ConfigSizes, mixer: Attention
) -> Iterator[Promised]:
    hidden, model_type = architecture.hidden_size, architecture.model_type
    queries = mixer.query_heads * mixer.key_width
    keys, values = (mixer.kv_heads * width for width in (mixer.key_width, mixer.value_width))
    gated = 2 if model_type in {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"} else 1
    outputs = {"q": gated * queries, "k": keys, "v": values}
    for letter, width in outputs.items():
        yield Promised(f"self_attn.{letter}_proj.weight", (width, hidden), is_linear=True)
    yield Promised("self_attn.o_proj.weight", (hidden, queries), is_linear=True)
    biased = _BIASED.get(model_type, "qkv" if sizes.says("attention_bias") else "")
    for letter in biased:
        width = hidden if letter == "o" else outputs[letter]
        yield Promised(f"self_attn.{letter}_proj.bias", (width,))
    yield from _beside_attention(sizes, model_type, mixer)


def _beside_attention(sizes: ConfigSizes, model_type: str, mixer: Attention) -> Iterator[Promised]:
    if model_type in _HEAD_NORMS or (model_type == "glm4_moe" and sizes.says("use_qk_norm")):
        yield Promised("self_attn.q_norm.weight", (mixer.key_width,))
        yield Promised("self_attn.k_norm.weight", (mixer.key_width,))
    if model_type == "minimax_m2" and sizes.says("use_qk_norm"):
        # One norm over all heads together.
        yield Promised("self_attn.q_norm.weight", (mixer.query_heads * mixer.key_width,))
        yield Promised("self_attn.k_norm.weight", (mixer.kv_heads * mixer.key_width,))
    if model_type == "gpt_oss":
        yield Promised("self_attn.sinks", (mixer.query_heads,))


def _latent(architecture: Architecture, sizes: ConfigSizes, mixer: Latent) -> Iterator[Promised]:
    hidden, heads = architecture.hidden_size, mixer.query_heads
    value_width = sizes.number("v_head_dim")
    query_width = mixer.head_width - value_width + mixer.rope_width
    rank = sizes.optional("q_lora_rank")
    if rank:
        yield Promised("self_attn.q_a_proj.weight", (rank, hidden), is_linear=True)
        yield Promised("self_attn.q_a_layernorm.weight", (rank,))
        yield Promised("self_attn.q_b_proj.weight", (heads * query_width, rank), is_linear=True)
    else:
        yield Promised("self_attn.q_proj.weight", (heads * query_width, hidden), is_linear=True)
    yield Promised("self_attn.kv_a_proj_with_mqa.weight", (mixer.width, hidden), is_linear=True)
    yield Promised("self_attn.kv_a_layernorm.weight", (mixer.rank,))
    unfolded = (heads * mixer.head_width, mixer.rank)
    yield Promised("self_attn.kv_b_proj.weight", unfolded, is_linear=True)
    yield Promised("self_attn.o_proj.weight", (hidden, heads * value_width), is_linear=True)
    if mixer.indexer_width:
        yield from _indexer(sizes, hidden, mixer.indexer_width, rank or hidden)


def _indexer(sizes: ConfigSizes, hidden: int, width: int, rank: int) -> Iterator[Promised]:
    heads, prefix = sizes.number("index_n_heads"), "self_attn.indexer"
    yield Promised(f"{prefix}.wq_b.weight", (heads * width, rank), is_linear=True)
    yield Promised(f"{prefix}.wk.weight", (width, hidden), is_linear=True)
    yield Promised(f"{prefix}.k_norm.weight", (width,))
    yield Promised(f"{prefix}.k_norm.bias", (width,))
    yield Promised(f"{prefix}.weights_proj.weight", (heads, hidden))


def _gated_delta_net(
    architecture: Architecture, sizes: ConfigSizes, mixer: Recurrent
) -> Iterator[Promised]:
    hidden, heads = architecture.hidden_size, mixer.heads
    width = sizes.number("linear_value_head_dim")
    values = heads * width
    inputs = {"in_proj_qkv": mixer.channels, "in_proj_z": values}
    gates = {"in_proj_a": heads, "in_proj_b": heads}
    if architecture.model_type == "qwen3_next":
        inputs, gates = {"in_proj_qkvz": mixer.channels + values}, {"in_proj_ba": 2 * heads}
    for name, outputs in (inputs | gates).items():
        yield Promised(f"linear_attn.{name}.weight", (outputs, hidden), is_linear=True)
    kernel = mixer.window_tokens + 1
    yield Promised("linear_attn.conv1d.weight", (mixer.channels, 1, kernel))
    yield Promised("linear_attn.A_log", (heads,))
    yield Promised("linear_attn.dt_bias", (heads,))
    yield Promised("linear_attn.norm.weight", (width,))
    yield Promised("linear_attn.out_proj.weight", (hidden, values), is_linear=True)


def _experts_of(
    model_type: str,
) -> Callable[[Architecture, ConfigSizes, Experts], Iterator[Promised]]:
    if model_type == "gpt_oss":
        return _experts_of_gpt_oss
    if model_type in {"mixtral", "minimax_m2"}:
        return _sparse_block
    return _experts


def _experts(
    architecture: Architecture, sizes: ConfigSizes, experts: Experts
) -> Iterator[Promised]:
    hidden, count, width = architecture.hidden_size, experts.count, experts.width
    yield Promised("mlp.gate.weight", (count, hidden))
    if _has_correction(sizes, architecture.model_type):
        yield Promised("mlp.gate.e_score_correction_bias", (count,))
    for expert in range(count):
        yield from _gated(f"mlp.experts.{expert}", hidden, width)
    yield from _shared(sizes, hidden, width)


def _has_correction(sizes: ConfigSizes, model_type: str) -> bool:
    return model_type == "glm4_moe" or sizes.text.get("topk_method") == "noaux_tc"


def _shared(sizes: ConfigSizes, hidden: int, width: int) -> Iterator[Promised]:
    """Qwen gates one shared expert; DeepSeek and GLM make one wide one of several."""
    own = sizes.optional("shared_expert_intermediate_size")
    if own:
        yield from _gated("mlp.shared_expert", hidden, own)
        yield Promised("mlp.shared_expert_gate.weight", (1, hidden))
    count = sizes.optional("n_shared_experts")
    if count:
        yield from _gated("mlp.shared_experts", hidden, count * width)


def _sparse_block(
    architecture: Architecture, sizes: ConfigSizes, experts: Experts
) -> Iterator[Promised]:
    hidden, count, width = architecture.hidden_size, experts.count, experts.width
    prefix = "block_sparse_moe"
    yield Promised(f"{prefix}.gate.weight", (count, hidden))
    if sizes.says("use_routing_bias"):
        yield Promised(f"{prefix}.e_score_correction_bias", (count,))
    for expert in range(count):
        for name in ("w1", "w2", "w3"):
            shape = (hidden, width) if name == "w2" else (width, hidden)
            yield Promised(f"{prefix}.experts.{expert}.{name}.weight", shape, is_linear=True)


def _experts_of_gpt_oss(
    architecture: Architecture, _sizes: ConfigSizes, experts: Experts
) -> Iterator[Promised]:
    hidden, count, width = architecture.hidden_size, experts.count, experts.width
    yield Promised("mlp.router.weight", (count, hidden))
    yield Promised("mlp.router.bias", (count,))
    yield Promised("mlp.experts.gate_up_proj", (count, hidden, 2 * width), is_linear=True)
    yield Promised("mlp.experts.gate_up_proj_bias", (count, 2 * width))
    yield Promised("mlp.experts.down_proj", (count, width, hidden), is_linear=True)
    yield Promised("mlp.experts.down_proj_bias", (count, hidden))


def _of_nemotron(
    architecture: Architecture, sizes: ConfigSizes, layer: Layer
) -> Iterator[Promised]:
    hidden = architecture.hidden_size
    yield Promised("norm.weight", (hidden,))
    if layer.experts is not None:
        yield from _nemotron_experts(sizes, hidden, layer.experts)
    elif not layer.mixers:
        yield from _two("mixer", hidden, sizes.number("intermediate_size"))
    for mixer in layer.mixers:
        if isinstance(mixer, Recurrent):
            yield from _mamba_2(mixer, hidden, sizes)
        elif isinstance(mixer, Attention):
            queries, keys = (n * mixer.key_width for n in (mixer.query_heads, mixer.kv_heads))
            for letter, width in (("q", queries), ("k", keys), ("v", keys)):
                yield Promised(f"mixer.{letter}_proj.weight", (width, hidden), is_linear=True)
            yield Promised("mixer.o_proj.weight", (hidden, queries), is_linear=True)


def _two(prefix: str, hidden: int, width: int) -> Iterator[Promised]:
    yield Promised(f"{prefix}.up_proj.weight", (width, hidden), is_linear=True)
    yield Promised(f"{prefix}.down_proj.weight", (hidden, width), is_linear=True)


def _nemotron_experts(sizes: ConfigSizes, hidden: int, experts: Experts) -> Iterator[Promised]:
    count = experts.count
    yield Promised("mixer.gate.weight", (count, hidden))
    yield Promised("mixer.gate.e_score_correction_bias", (count,))
    for expert in range(count):
        yield from _two(f"mixer.experts.{expert}", hidden, experts.width)
    shared = sizes.optional("moe_shared_expert_intermediate_size")
    if shared and sizes.optional("n_shared_experts"):
        yield from _two("mixer.shared_experts", hidden, shared)


def _mamba_2(mixer: Recurrent, hidden: int, sizes: ConfigSizes) -> Iterator[Promised]:
    inner, heads = mixer.channels, mixer.heads
    channels = inner + mixer.groups * mixer.group_channels
    inputs, kernel = inner + channels + heads, mixer.window_tokens + 1
    yield Promised("mixer.in_proj.weight", (inputs, hidden), is_linear=True)
    yield Promised("mixer.conv1d.weight", (channels, 1, kernel))
    if sizes.says("use_conv_bias"):
        yield Promised("mixer.conv1d.bias", (channels,))
    for name in ("A_log", "D", "dt_bias"):
        yield Promised(f"mixer.{name}", (heads,))
    yield Promised("mixer.norm.weight", (inner,))
    yield Promised("mixer.out_proj.weight", (hidden, inner), is_linear=True)
