"""From a config.json to layers: one small function for each way that architectures keep a request.

Numbers of a config.json are a stranger's: named, bounded, and never guessed.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sparkdeploy.checkpoint.layers import (
    STATE_BYTES,
    Architecture,
    Attention,
    Experts,
    Latent,
    Layer,
    Mixer,
    Recurrent,
)
from sparkdeploy.checkpoint.repo_files import shown
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.document import read_document
from sparkdeploy.settings import resources

TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Where models that also see or hear keep their language model; the first that is there."""
FULL, WINDOW, CHUNK, LINEAR, MAMBA, BOTH, NONE = range(7)
_BY_WORD: Final = {
    "full_attention": FULL,
    "attention": FULL,
    "global_attention": FULL,
    "sliding_attention": WINDOW,
    "chunked_attention": CHUNK,
    "linear_attention": LINEAR,
    "mamba": MAMBA,
    "mamba2": MAMBA,
    "hybrid": BOTH,
    "mlp": NONE,
    "moe": NONE,
}
_BY_LETTER: Final = {"M": MAMBA, "*": FULL, "-": NONE, "E": NONE}
"""Nemotron-H writes its layers as one word."""
_ALL_ALIKE: Final = {"mamba": MAMBA, "mamba2": MAMBA, "falcon_mamba": MAMBA, "falcon_h1": BOTH}
_ALTERNATING: Final = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Every so many layers one is full, where config.json does not say which."""
_SWITCHED_ON: Final = ("qwen2", "qwen3")
"""Model types whose windows are off unless `use_sliding_window` says otherwise."""
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_MTP_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_WIDTH_LIMIT = 1 << 24
_LIMITS: Final = {
    **dict.fromkeys(_LAYERS, 2000),
    **dict.fromkeys(_MTP_LAYERS, 16),
    **dict.fromkeys(_EXPERTS, 8192),
}
"""Many times what the largest models have; names of as many tensors take little memory."""


@dataclass(frozen=True, slots=True)
class ConfigSizes:
    text: Mapping[str, Any]
    whole: Mapping[str, Any]

    def number(self, *names: str, least: int = 1) -> int:
        """Return the first of these keys that is there; raise CheckpointError without any."""
        found = self.optional(*names, least=least)
        if found is None:
            raise CheckpointError(f"config.json: {names[0]} is missing.")
        return found

    def optional(self, *names: str, least: int = 0) -> int | None:
        """Return the first of these keys that is no null; CheckpointError for no number."""
        for name in names:
            value = self.text.get(name)
            if value is not None:
                return _checked(name, value, least)
        return None

    def listed(self, name: str, length: int) -> list[Any] | None:
        """Return a list with an entry for each layer; None where there is none."""
        found = self.text.get(name)
        if not isinstance(found, list):
            return None
        if len(found) < length:
            raise CheckpointError(
                f"config.json: {name} has {len(found)} entries for {length} layers."
            )
        return found[:length]

    def says(self, name: str) -> bool:
        """Return whether a switch is on, in the language model's part or beside it."""
        return self.text.get(name, self.whole.get(name)) is True

    @property
    def model_type(self) -> object:
        return self.text.get("model_type", self.whole.get("model_type"))

    @property
    def ties_embeddings(self) -> bool:
        """Whether the LM head is the embeddings; Google's configuration classes tie by default."""
        stated = self.whole.get("tie_word_embeddings", self.text.get("tie_word_embeddings"))
        return str(self.model_type).startswith("gemma") if stated is None else bool(stated)


def config_sizes(config: Mapping[str, Any]) -> ConfigSizes:
    """Find the language model's part; raise CheckpointError where it is no object."""
    # Qwen's Omni models have their language model one floor deeper.
    outer = config.get("thinker_config", config)
    if not isinstance(outer, dict):
        raise CheckpointError("config.json: thinker_config is not an object.")
    name = next((part for part in TEXT_PARTS if outer.get(part) is not None), None)
    text = outer if name is None else outer[name]
    if not isinstance(text, dict):
        raise CheckpointError(f"config.json: {name} is not an object.")
    return ConfigSizes(text, config)


def _checked(name: str, value: object, least: int) -> int:
    limit = _LIMITS.get(name, _WIDTH_LIMIT)
    if type(value) is not int or not least <= value <= limit:
        raise CheckpointError(
            f"config.json: {name} is {shown(value)}, not a number from {least} to {limit}."
        )
    return value


class UnknownArchitectureError(Exception):
    """A config.json whose layers the planner does not know; its text says which."""


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the layers that a config.json describes; UnknownArchitectureError for other models."""
    sizes = config_sizes(config)
    model_type = sizes.model_type
    family = _families().get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise UnknownArchitectureError(f"how a {shown(model_type)} model keeps a request")
    layers = _layers(sizes, str(model_type), family)
    return Architecture(
        model_type=str(model_type),
        hidden_size=sizes.number("hidden_size", "n_embd", "d_model"),
        vocab_size=sizes.number("vocab_size"),
        max_position_embeddings=sizes.optional("max_position_embeddings", "n_positions") or 0,
        layers=layers,
        dense_width=sizes.optional("intermediate_size", "ffn_hidden_size", "n_inner") or 0,
        draft_layers=_draft_layers(sizes, layers),
        ties_embeddings=sizes.ties_embeddings,
        keeps_cache=family != "encoder",
    )


@functools.cache
def _families() -> Mapping[str, str]:
    found = read_document(resources() / "recipes" / "facts" / "architectures.yaml").content
    return {name: family for family, names in found["families"].items() for name in names}


def _layers(sizes: ConfigSizes, model_type: str, family: str) -> tuple[Layer, ...]:
    count = sizes.number(*_LAYERS)
    kinds = _kinds(sizes, model_type, family, count)
    owners = count - (sizes.optional("num_kv_shared_layers") or 0)
    routed = [_has_experts(sizes, index) for index in range(count)]
    experts = _experts(sizes) if any(routed) else None
    mixers = {kind: _mixers(sizes, model_type, family, kind) for kind in set(kinds)}
    return tuple(
        Layer(mixers[kind], experts if has_experts else None, borrows_cache=index >= owners > 0)
        for index, (kind, has_experts) in enumerate(zip(kinds, routed, strict=True))
    )


def _kinds(sizes: ConfigSizes, model_type: str, family: str, count: int) -> list[int]:
    """Return how each layer keeps a request, in the order that vLLM looks for it."""
    if model_type in _ALL_ALIKE:
        return [_ALL_ALIKE[model_type]] * count
    letters = sizes.text.get("hybrid_override_pattern")
    if isinstance(letters, str):
        if len(letters) < count:
            raise CheckpointError(
                f"config.json: hybrid_override_pattern has {len(letters)} letters for {count} "
                "layers."
            )
        return [_known(letter, _BY_LETTER) for letter in letters[:count]]
    words = sizes.listed("layers_block_type", count) or sizes.listed("layer_types", count)
    if words is not None:
        return [_known(word, _BY_WORD) for word in words]
    if family == "gated_delta_net":
        every = sizes.optional("full_attention_interval", least=1) or 4
        return [FULL if (index + 1) % every == 0 else LINEAR for index in range(count)]
    if family in {"mamba_1", "mamba_2"}:
        return _attention_among_mamba(sizes, count)
    return _attention_kinds(sizes, model_type, count)


def _attention_among_mamba(sizes: ConfigSizes, count: int) -> list[int]:
    indices = sizes.text.get("attn_layer_indices")
    if isinstance(indices, list):
        return [FULL if index in indices else MAMBA for index in range(count)]
    period, offset = sizes.optional("attn_layer_period"), sizes.optional("attn_layer_offset")
    if not period or offset is None:
        raise UnknownArchitectureError("which of its layers are attention")
    return [FULL if index % period == offset else MAMBA for index in range(count)]


def _attention_kinds(sizes: ConfigSizes, model_type: str, count: int) -> list[int]:
    positionless = sizes.listed("no_rope_layers", count)
    if positionless is not None and sizes.optional("attention_chunk_size"):
        return [CHUNK if has_positions else FULL for has_positions in positionless]
    if not sizes.optional("sliding_window") or sizes.text.get("use_sliding_window") is False:
        return [FULL] * count
    if model_type.startswith(_SWITCHED_ON) and not sizes.says("use_sliding_window"):
        return [FULL] * count
    every = sizes.optional("sliding_window_pattern", least=1) or _ALTERNATING.get(model_type)
    if every is not None:
        return [FULL if (index + 1) % every == 0 else WINDOW for index in range(count)]
    if sizes.says("use_sliding_window"):
        first = sizes.optional("max_window_layers") or 0
        return [WINDOW if index >= first else FULL for index in range(count)]
    return [WINDOW] * count


def _known(word: object, words: Mapping[str, int]) -> int:
    if not isinstance(word, str) or word not in words:
        raise UnknownArchitectureError(f"how a layer of type {shown(word)} keeps a request")
    return words[word]


def _mixers(sizes: ConfigSizes, model_type: str, family: str, kind: int) -> tuple[Mixer, ...]:
    if kind == NONE:
        return ()
    if kind == LINEAR:
        if family != "gated_delta_net":
            raise UnknownArchitectureError(f"how linear attention of {model_type} keeps a request")
        return (_gated_delta_net(sizes, model_type),)
    state = _mamba_1 if family == "mamba_1" else _mamba_2
    if kind == MAMBA:
        return (state(sizes, model_type),)
    if kind == BOTH:
        return (_attention(sizes, model_type, FULL), state(sizes, model_type))
    return (_latent(sizes) if family == "latent" else _attention(sizes, model_type, kind),)


def _attention(sizes: ConfigSizes, model_type: str, kind: int) -> Attention:
    heads = sizes.number("num_attention_heads", "n_head")
    hidden = sizes.number("hidden_size", "n_embd", "d_model")
    kv_heads = sizes.optional("num_key_value_heads", least=1) or heads
    width = sizes.optional("head_dim", "attention_head_dim", least=1) or hidden // heads
    if kind == FULL and model_type == "gemma4_text":
        # Its full layers are wider than its windows, and may have fewer heads.
        width = sizes.optional("global_head_dim", least=1) or width
        if sizes.says("attention_k_eq_v"):
            kv_heads = sizes.optional("num_global_key_value_heads", least=1) or kv_heads
    window = sizes.number("sliding_window") if kind == WINDOW else None
    # Cohere's windows reach one token further than their name says (vLLM's commandr.py).
    if window is not None and model_type == "cohere2":
        window += 1
    chunk = sizes.number("attention_chunk_size") if kind == CHUNK else None
    return Attention(heads, kv_heads, width, width, window, chunk)


def _latent(sizes: ConfigSizes) -> Latent:
    chosen = sizes.optional("index_topk") or 0
    return Latent(
        query_heads=sizes.number("num_attention_heads"),
        rank=sizes.number("kv_lora_rank"),
        rope_width=sizes.number("qk_rope_head_dim"),
        head_width=sizes.number("qk_nope_head_dim") + sizes.number("v_head_dim"),
        indexer_width=sizes.number("index_head_dim") if chosen else 0,
        chosen_tokens=chosen,
    )


def _gated_delta_net(sizes: ConfigSizes, model_type: str) -> Recurrent:
    key_width = sizes.number("linear_num_key_heads") * sizes.number("linear_key_head_dim")
    heads, value_width = (
        sizes.number("linear_num_value_heads"),
        sizes.number("linear_value_head_dim"),
    )
    said = str(sizes.text.get("mamba_ssm_dtype"))
    return Recurrent(
        name="Gated DeltaNet",
        heads=heads,
        head_elements=value_width * sizes.number("linear_key_head_dim"),
        channels=2 * key_width + heads * value_width,
        window_tokens=sizes.number("linear_conv_kernel_dim") - 1,
        # vLLM follows the configuration of Qwen3.5 and later; Qwen3-Next's has two bytes.
        memory_bytes=2 if model_type == "qwen3_next" else STATE_BYTES.get(said, 2),
        checkpoints_since=(0, 33, 0),
    )


def _mamba_2(sizes: ConfigSizes, model_type: str) -> Recurrent:
    heads = sizes.number("mamba_num_heads", "mamba_n_heads", "num_heads")
    width = sizes.number("mamba_head_dim", "mamba_d_head", "head_dim")
    state = sizes.number("ssm_state_size", "mamba_d_state", "state_size")
    kernel = sizes.number("conv_kernel", "mamba_d_conv")
    said = str(sizes.text.get("mamba_ssm_cache_dtype", "float32"))
    return Recurrent(
        name="Mamba-2",
        heads=heads,
        head_elements=width * state,
        channels=heads * width,
        window_tokens=kernel - 1,
        # vLLM keeps Nemotron-H's as its configuration says, FP32 without a word; others in two.
        memory_bytes=STATE_BYTES.get(said, 4) if model_type == "nemotron_h" else 2,
        groups=sizes.number("n_groups", "mamba_n_groups"),
        group_channels=2 * state,
        window_follows_drafts=model_type == "nemotron_h",
        checkpoints_since=(0, 32, 0),
    )


def _mamba_1(sizes: ConfigSizes, _model_type: str) -> Recurrent:
    hidden, expand = sizes.number("hidden_size"), sizes.optional("mamba_expand", "expand") or 2
    width = sizes.optional("intermediate_size") if "state_size" in sizes.text else None
    inner = width or hidden * expand
    return Recurrent(
        name="Mamba",
        heads=inner,
        head_elements=sizes.number("mamba_d_state", "state_size"),
        channels=inner,
        window_tokens=sizes.number("mamba_d_conv", "conv_kernel") - 1,
        memory_bytes=2,
        window_follows_drafts=False,
    )


def _experts(sizes: ConfigSizes) -> Experts | None:
    count = sizes.optional(*_EXPERTS)
    if not count:
        return None
    return Experts(
        count=count,
        chosen=sizes.number(
            "num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts", "moe_topk"
        ),
        width=sizes.number(
            "moe_intermediate_size", "expert_intermediate_size", "intermediate_size"
        ),
    )


def _has_experts(sizes: ConfigSizes, index: int) -> bool:
    """Whether a layer has routed experts, by the rules that configurations state."""
    if not sizes.optional(*_EXPERTS):
        return False
    letters = sizes.text.get("hybrid_override_pattern")
    words = sizes.text.get("layers_block_type")
    if isinstance(letters, str):
        return letters[index : index + 1] == "E"
    if isinstance(words, list) and "moe" in words:
        return bool(words[index] == "moe")
    dense = sizes.text.get("mlp_only_layers")
    if isinstance(dense, list) and index in dense:
        return False
    step = sizes.optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    first = sizes.optional("first_k_dense_replace", "moe_layer_start_index") or 0
    return index >= first and (not step or (index + 1) % step == 0)


def _draft_layers(sizes: ConfigSizes, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    count = sizes.optional(*_MTP_LAYERS) or 0
    full = [layer for layer in layers if layer.mixers and layer.mixers[0].grows]
    return (full[-1],) * count if full else ()
