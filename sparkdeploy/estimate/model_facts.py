"""What is known of a model: its architecture and where its weight bytes are, by kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint.contents import WIDTH_LIMIT
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sparkdeploy.checkpoint.safetensors import TensorInfo

SIZE_LIMIT = WIDTH_LIMIT
"""Of any count or width in config.json, which a stranger may have written."""


class WeightKind(StrEnum):
    """What a weight tensor belongs to; the value is how a person reads it."""

    EXPERTS = "routed experts"
    SHARED_EXPERTS = "shared experts"
    ROUTER = "router"
    ATTENTION = "attention"
    GDN = "Gated DeltaNet"
    NORMS = "norms"
    EMBEDDINGS = "embeddings"
    LM_HEAD = "LM head"
    MTP_EXPERTS = "MTP experts"
    MTP_DENSE = "MTP layer without experts"
    VISION = "vision"
    OTHER = "other"


KIND_BY_PART = {
    ".visual.": WeightKind.VISION,
    "lm_head.": WeightKind.LM_HEAD,
    ".embed_tokens.": WeightKind.EMBEDDINGS,
    ".mlp.experts.": WeightKind.EXPERTS,
    ".mlp.shared_expert.": WeightKind.SHARED_EXPERTS,
    ".mlp.shared_expert_gate.": WeightKind.ROUTER,
    ".mlp.gate.": WeightKind.ROUTER,
    ".linear_attn.": WeightKind.GDN,
    "_norm.": WeightKind.NORMS,
    ".self_attn.": WeightKind.ATTENTION,
    "layernorm.": WeightKind.NORMS,
    ".norm.": WeightKind.NORMS,
}
"""The first that a tensor's name holds says its kind: DeltaNet's own norm is DeltaNet's, and
q_norm is a norm although in attention. Names are those of vLLM's qwen3_5.py."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes that decide memory and speed, under config.json's names; in elements and counts."""

    hidden_size: int
    vocab_size: int
    full_attention_layers: int
    linear_attention_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    mtp_num_hidden_layers: int
    max_position_embeddings: int
    vision_depth: int = 0
    vision_hidden_size: int = 0
    vision_intermediate_size: int = 0
    vision_positions: int = 0

    @property
    def layers(self) -> int:
        """Return the language model's layers, the draft layer not counted."""
        return self.full_attention_layers + self.linear_attention_layers

    @property
    def convolved_width(self) -> int:
        """Return the channels of a DeltaNet layer's convolution: queries, keys and values."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's architecture and weight bytes, and how we came to know them."""

    repo: str
    architecture: Architecture
    weight_bytes: Mapping[WeightKind, int]
    origin: str
    """`safetensors headers` when read from files, otherwise the facts file and `derived`."""

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all tensors; files hold a few headers more."""
        return sum(self.weight_bytes.values())


def read_shipped_facts(path: Path) -> Mapping[str, ModelFacts]:
    return {
        repo: ModelFacts(
            repo=repo,
            architecture=Architecture(**entry["architecture"]["values"]),
            weight_bytes={
                WeightKind(kind): n for kind, n in entry["weight_bytes"]["values"].items()
            },
            origin="facts file, derived from the architecture (nothing was downloaded)",
        )
        for repo, entry in read_document(path).content["models"].items()
    }


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture a config.json states; raise CheckpointError for what is missing."""
    text = config.get("text_config", config)
    vision = config.get("vision_config") or {}
    if not isinstance(text, dict) or not isinstance(vision, dict):
        raise CheckpointError("config.json: text_config and vision_config are not objects.")
    types = text.get("layer_types")
    if not isinstance(types, list):
        raise CheckpointError("config.json: layer_types is missing, so the layers are unknown.")
    sizes = {
        "full_attention_layers": types.count("full_attention"),
        "linear_attention_layers": types.count("linear_attention"),
        "mtp_num_hidden_layers": _size(text, "mtp_num_hidden_layers", least=0),
        "vision_depth": _size(vision, "depth", least=0),
        "vision_hidden_size": _size(vision, "hidden_size", least=0),
        "vision_intermediate_size": _size(vision, "intermediate_size", least=0),
        "vision_positions": _size(vision, "num_position_embeddings", least=0),
    }
    names = [item.name for item in fields(Architecture) if item.name not in sizes]
    sizes |= {name: _size(text, name, least=1) for name in names}
    return Architecture(**sizes)


def _size(text: Mapping[str, Any], name: str, *, least: int) -> int:
    value = text.get(name, 0)
    if type(value) is not int or not least <= value <= SIZE_LIMIT:
        kind = type(value).__name__
        said = value if type(value) is int and abs(value) < 10**18 else f"of type {kind}"
        raise CheckpointError(
            f"config.json: {name} is {said}, not a positive number up to {SIZE_LIMIT}."
        )
    return value


def kind_of(name: str) -> WeightKind:
    if name.startswith("mtp."):
        return WeightKind.MTP_EXPERTS if ".mlp.experts." in name else WeightKind.MTP_DENSE
    return next((kind for part, kind in KIND_BY_PART.items() if part in name), WeightKind.OTHER)


def weights_of(tensors: Iterable[TensorInfo]) -> Mapping[WeightKind, int]:
    """Return bytes by kind, as headers count them; they add up to the bytes of all tensors."""
    found: Counter[WeightKind] = Counter()
    for tensor in tensors:
        found[kind_of(tensor.name)] += tensor.size_bytes
    return {kind: found[kind] for kind in WeightKind if found[kind]}
