"""What is known of a model: its layers, and where its weight bytes are, by kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint.architecture import UnknownArchitectureError, architecture_of
from sparkdeploy.checkpoint.quantised import method_of
from sparkdeploy.estimate.weights import WeightKind, bytes_in_memory, kinds_for
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sparkdeploy.checkpoint.layers import Architecture
    from sparkdeploy.checkpoint.safetensors import TensorInfo


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's layers and weight bytes, and how we came to know them."""

    repo: str
    architecture: Architecture | None
    """None where the planner does not know the layers; `unknown` says what that leaves open."""
    weight_bytes: Mapping[WeightKind, int]
    """As they are stored."""
    origin: str
    """`safetensors headers` when read from files, otherwise the facts file and `derived`."""
    memory_bytes: Mapping[WeightKind, int] = field(default_factory=dict)
    """As vLLM holds them, before a recipe's conversion; those stored where none are given."""
    unknown: str = ""
    """What is not known of it, as words that follow `not known: `; empty when all is."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its config.json, or what of it is shipped."""
    quantisation: str = ""
    """The `quant_method` of its config.json; empty for 16 bits."""
    drafter: ModelFacts | None = None
    """The model that drafts for it, where a recipe names one and it is known."""
    tensor_ranks: int = 1
    """Ranks that divide each layer; the bytes are those of one."""
    stages: int = 1
    """Of a pipeline; the bytes are those of the stage that holds most."""

    def __post_init__(self) -> None:
        if not self.memory_bytes:
            object.__setattr__(self, "memory_bytes", dict(self.weight_bytes))

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all tensors; files hold a few headers more."""
        return sum(self.weight_bytes.values())


def facts_from(
    repo: str, config: Mapping[str, Any], tensors: Iterable[TensorInfo], origin: str
) -> ModelFacts:
    """Return what a config.json and the headers beside it say.

    Layers that are not known are None in the answer. Raises CheckpointError for numbers that no
    model has.
    """
    listed = list(tensors)
    kind_of = kinds_for(config)
    stored = _by_kind((kind_of(it.name), it.size_bytes) for it in listed)
    architecture, unknown = known_layers(config)
    memory = bytes_in_memory(listed, architecture)
    held = _by_kind((kind_of(name), size) for name, size in memory)
    return ModelFacts(
        repo=repo,
        architecture=architecture,
        weight_bytes=stored,
        origin=origin,
        memory_bytes=held,
        unknown=unknown,
        config=config,
        quantisation=quantisation_of(config),
    )


def quantisation_of(config: Mapping[str, Any]) -> str:
    """Return the `quant_method` of a config.json; empty for none."""
    return method_of(config) or ""


def known_layers(config: Mapping[str, Any]) -> tuple[Architecture | None, str]:
    """Return the layers of a config.json, or None and what that leaves unknown."""
    try:
        return architecture_of(config), ""
    except UnknownArchitectureError as error:
        return None, str(error)


def _by_kind(sizes: Iterable[tuple[WeightKind, int]]) -> Mapping[WeightKind, int]:
    """Add bytes up by kind; they come to the bytes of all tensors."""
    found: Counter[WeightKind] = Counter()
    for kind, size in sizes:
        found[kind] += size
    return {kind: found[kind] for kind in WeightKind if found[kind]}


def read_shipped_facts(path: Path) -> Mapping[str, ModelFacts]:
    return {
        repo: _shipped(repo, entry) for repo, entry in read_document(path).content["models"].items()
    }


def _shipped(repo: str, entry: Mapping[str, Any]) -> ModelFacts:
    architecture, unknown = known_layers(entry["config"])
    is_quoted = "quoted" in entry["weight_bytes"]
    how = "as others quote the files" if is_quoted else "derived from the architecture"
    return ModelFacts(
        repo=repo,
        architecture=architecture,
        weight_bytes={WeightKind(kind): n for kind, n in entry["weight_bytes"]["values"].items()},
        origin=f"facts file, {how} (nothing was downloaded)",
        unknown=unknown,
        config=entry["config"],
        quantisation=quantisation_of(entry["config"]),
    )
