"""What is known of a model: its architecture and where its weight bytes are, by kind."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"


class Kind(StrEnum):
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
    weight_bytes: Mapping[Kind, int]
    origin: str
    """`safetensors headers` when read from files, otherwise the facts file and `derived`."""

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all tensors; files hold a few headers more."""
        return sum(self.weight_bytes.values())


def read_shipped_facts(path: Path) -> Mapping[str, ModelFacts]:
    """Return the facts of every model in the shipped file, by repository."""
    models = read_document(path).content["models"]
    return {repo: _shipped(repo, entry) for repo, entry in models.items()}


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture a config.json states; raise CheckpointError for what is missing."""
    text = config.get("text_config", config)
    vision = config.get("vision_config") or {}
    types = text.get("layer_types")
    if not isinstance(types, list):
        raise CheckpointError("config.json: layer_types is missing, so the layers are unknown.")
    sizes = {
        "full_attention_layers": types.count(FULL_ATTENTION),
        "linear_attention_layers": types.count(LINEAR_ATTENTION),
        "mtp_num_hidden_layers": int(text.get("mtp_num_hidden_layers", 0)),
        "vision_depth": int(vision.get("depth", 0)),
        "vision_hidden_size": int(vision.get("hidden_size", 0)),
        "vision_intermediate_size": int(vision.get("intermediate_size", 0)),
        "vision_positions": int(vision.get("num_position_embeddings", 0)),
    }
    for name in (item.name for item in fields(Architecture) if item.name not in sizes):
        value = text.get(name)
        if type(value) is not int or value < 1:
            raise CheckpointError(f"config.json: {name} is {value!r}, not a positive number.")
        sizes[name] = value
    return Architecture(**sizes)


def _shipped(repo: str, entry: Mapping[str, Any]) -> ModelFacts:
    return ModelFacts(
        repo=repo,
        architecture=Architecture(**entry["architecture"]["values"]),
        weight_bytes={Kind(kind): size for kind, size in entry["weight_bytes"]["values"].items()},
        origin="facts file, derived from the architecture (nothing was downloaded)",
    )
