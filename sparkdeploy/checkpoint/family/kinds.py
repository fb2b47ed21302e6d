"""What a tensor belongs to, told by its name: the words that families of models use."""

from __future__ import annotations

import functools
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class WeightKind(StrEnum):
    """What a weight tensor belongs to; the value is how a person reads it."""

    EXPERTS = "routed experts"
    SHARED_EXPERTS = "shared experts"
    ROUTER = "router"
    ATTENTION = "attention"
    GDN = "Gated DeltaNet"
    MAMBA = "Mamba"
    FEED_FORWARD = "feed-forward"
    NORMS = "norms"
    EMBEDDINGS = "embeddings"
    LM_HEAD = "LM head"
    MTP_EXPERTS = "MTP experts"
    MTP_DENSE = "MTP layer without experts"
    VISION = "vision"
    AUDIO = "audio"
    POOLING = "pooling head"
    TABLES = "rotary tables"
    OTHER = "other"


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
_EXPERT = re.compile(
    r"\.(?:experts|local_experts)[.\d]|\.experts$|\.block_sparse_moe\.(?:in|out)put_linear\."
)
_DRAFTING = re.compile(r"^(?:model\.)?mtp\.|\.mtp_|^mtp_|(?:^|\.)nextn\.")
_RULES: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (WeightKind.AUDIO, r"(?:^|\.)(?:audio|speech|embed_audio|audio_\w+|whisper)\b"),
        (
            WeightKind.VISION,
            r"(?:^|\.)(?:visual|vision|vision_\w+|vit|image_newline|patch_merger|pre_mm_projector_norm"
            r"|multi_modal_projector|mm_projector|embed_vision|vision_language_adapter|mlp1)\b",
        ),
        (WeightKind.LM_HEAD, r"^(?:[\w.]+\.)?(?:lm_head|output|embed_out)\.\w+$"),
        (WeightKind.POOLING, r"(?:^|\.)(?:score|classifier|pooler|\d+_Dense|linear_out)\b"),
        (
            WeightKind.EMBEDDINGS,
            r"(?:^|\.)(?:embed_tokens(?:_per_layer)?|embeddings|embedding|tok_embeddings|wte|wpe"
            r"|word_embeddings|position_embeddings|token_type_embeddings)\b",
        ),
        (WeightKind.TABLES, r"rotary_emb\.|\.inv_freq$"),
        # Norms first: those of heads and states lie within attention and mixers.
        (
            WeightKind.NORMS,
            r"(?:^|[._])(?:\w{0,64}norm\w{0,64}|layernorm|ln_\w+|LayerNorm)(?:\.(?:weight|bias))?$",
        ),
        (WeightKind.SHARED_EXPERTS, r"\.(?:shared_experts?|shared_mlp)\."),
        (
            WeightKind.ROUTER,
            r"\.(?:router|gate|shared_expert_gate|expert_bias|e_score_correction_bias|block_sparse_moe"
            r"\.gate|per_expert_scale)(?:\.\w{1,64}){0,4}$",
        ),
        (WeightKind.GDN, r"\.(?:linear_attn|delta_net|kda)\b"),
        (
            WeightKind.MAMBA,
            r"\.mamba\b|\.mixer\.(?:A_log|D|dt_bias|conv1d|in_proj|out_proj|x_proj|dt_proj)\b",
        ),
        (
            WeightKind.ATTENTION,
            r"\.(?:self_attn|attention|attn|self_attention|mixer\.[qkvo]_proj)\b|\.indexer\.|\.sinks$",
        ),
        (
            WeightKind.FEED_FORWARD,
            r"\.(?:mlp|feed_forward|ffn|dense|intermediate|mixer\.(?:up|down|gate)_proj"
            r"|dense_h_to_4h|dense_4h_to_h|per_layer_\w+|laurel|fc\d)\b|\.(?:w[123])\b",
        ),
    )
)
"""The first that is found in a tensor's name says its kind."""
_NUMBER = re.compile(r"\.\d+\.")
_GDN_NORM = re.compile(r"\.(?:linear_attn|mixer|mamba)\.norm\.")


def kinds_for(config: Mapping[str, Any]) -> Callable[[str], WeightKind]:
    """Return what tells a tensor's kind in a repository with this config.json.

    Layers beyond those that the configuration counts are draft layers, as DeepSeek and GLM store
    them.
    """
    text = config.get("text_config", config)
    count = text.get("num_hidden_layers") if isinstance(text, dict) else None
    layers = count if type(count) is int else None

    def kind(name: str) -> WeightKind:
        found = _LAYER.search(name)
        is_beyond = layers is not None and found is not None and int(found[1]) >= layers
        if _DRAFTING.search(name) or (is_beyond and not _is_tower(name)):
            is_expert = _EXPERT.search(name) is not None
            return WeightKind.MTP_EXPERTS if is_expert else WeightKind.MTP_DENSE
        return kind_of(name)

    return kind


def _is_tower(name: str) -> bool:
    return kind_of(name) in {WeightKind.VISION, WeightKind.AUDIO}


def kind_of(name: str) -> WeightKind:
    """Return the kind of a tensor of the model itself, drafting layers apart."""
    return _kind_of_pattern(_NUMBER.sub(".0.", name))


@functools.lru_cache(maxsize=4096)
def _kind_of_pattern(name: str) -> WeightKind:
    """The names of a checkpoint differ by their numbers alone: a hundred thousand are some tens."""
    if _EXPERT.search(name) and not any(rule.search(name) for _, rule in _RULES[:2]):
        return WeightKind.EXPERTS
    if _GDN_NORM.search(name):
        return WeightKind.GDN if ".linear_attn." in name else WeightKind.MAMBA
    return next((kind for kind, rule in _RULES if rule.search(name)), WeightKind.OTHER)
