"""What is known of a model: its layers, its weight bytes by kind, and what one rank holds of them.

vLLM divides a layer's matrices over the tensor parallel ranks and the layers over the pipeline's
stages (distributed/utils.py `get_pp_indices`); routers and norms are whole on every tensor
parallel rank. Embeddings and LM head are counted whole: vLLM divides their rows by tensor
parallel, but one stage may hold both, so the share is never too small.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sparkdeploy import yaml_text
from sparkdeploy.checkpoint.architecture import (
    UnknownArchitectureError,
    architecture_of,
    config_sizes,
)
from sparkdeploy.checkpoint.contents import NOT_DESCRIBED, Described, method_of
from sparkdeploy.checkpoint.dense_layers import dense_layers
from sparkdeploy.checkpoint.expected_tensors import expected_tensors
from sparkdeploy.checkpoint.layers import Architecture, Attention, Latent, Layer
from sparkdeploy.checkpoint.safetensors import TensorInfo
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.document import read_document
from sparkdeploy.recipe.schema import Recipe


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
_NUMBER = re.compile(r"\.\d+\.")
_GDN_NORM = re.compile(r"\.(?:linear_attn|mixer|mamba)\.norm\.")
TOWERS: Final = frozenset({WeightKind.VISION, WeightKind.AUDIO})
REPEATED: Final = frozenset({WeightKind.ROUTER, WeightKind.NORMS})
"""In every layer, and whole on every tensor parallel rank."""
ON_ONE_STAGE: Final = TOWERS | {WeightKind.MTP_EXPERTS, WeightKind.MTP_DENSE}
"""Divided by tensor parallel alone."""
ENDS: Final = frozenset({WeightKind.EMBEDDINGS, WeightKind.LM_HEAD})
"""Counted whole; of what is no layer's and no tower's nobody knows how it is divided."""
WHOLE: Final = ENDS | {WeightKind.POOLING, WeightKind.TABLES, WeightKind.OTHER}


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
    described: Described = NOT_DESCRIBED
    """Its small files, or what of its config.json is shipped."""
    dense_share: Mapping[WeightKind, float] | None = None
    """What of a kind's bytes is dense layers at 16 bits; None: see `dense_share_of`."""
    drafter: "ModelFacts | None" = None
    """The model that drafts for it, where a recipe names one and it is known."""
    tensor_ranks: int = 1
    """Ranks that divide each layer; the bytes are those of one."""
    stages: int = 1
    """Of a pipeline; the bytes are those of the stage that holds most."""

    def __post_init__(self) -> None:
        if not self.memory_bytes:
            object.__setattr__(self, "memory_bytes", dict(self.weight_bytes))

    @property
    def config(self) -> Mapping[str, Any]:
        return self.described.config

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all tensors; files hold a few headers more."""
        return sum(self.weight_bytes.values())

    @property
    def quantisation(self) -> str:
        """Return the `quant_method` of its config.json; empty for 16 bits."""
        return method_of(self.config) or ""

    @property
    def is_nvfp4(self) -> bool:
        """Whether its config.json names NVFP4, as ModelOpt or compressed-tensors write it."""
        stated = self.config.get("quantization_config")
        if not isinstance(stated, dict):
            return False
        return stated.get("quant_algo") == "NVFP4" or stated.get("format") == "nvfp4-pack-quantized"


def facts_from(
    repo: str,
    described: Described,
    tensors: Iterable[TensorInfo],
    origin: str,
    *,
    untyped_bytes: int = 0,
) -> ModelFacts:
    """Return what a model's small files and headers say, or the sizes of files alone."""
    listed, kind_of = list(tensors), kinds_for(described.config)
    architecture, unknown = known_layers(described.config)
    if not listed:
        stored = held = {WeightKind.OTHER: untyped_bytes}
    else:
        stored = _by_kind((kind_of(it.name), it.size_bytes) for it in listed)
        in_memory = bytes_in_memory(listed, architecture)
        held = _by_kind((kind_of(name), size) for name, size in in_memory)
    share = _share_of_kinds(described.config, listed) if listed else None
    return ModelFacts(
        repo, architecture, stored, origin, held, unknown, described, dense_share=share
    )


def _share_of_kinds(
    config: Mapping[str, Any], tensors: Sequence[TensorInfo]
) -> dict[WeightKind, float]:
    kind_of_tensor = kinds_for(config)
    every = _by_kind((kind_of_tensor(it.name), it.size_bytes) for it in tensors)
    dense = dense_layers(config, tensors).values()
    found = _by_kind((kind_of_tensor(it.name), it.size_bytes) for it in dense)
    return {kind: size / every[kind] for kind, size in found.items()}


def dense_share_of(facts: ModelFacts) -> Mapping[WeightKind, float]:
    """Return what of each kind's bytes is dense layers at 16 bits, which can become FP8.

    Where no header was read, a kind is at 16 bits if its bytes are those of the tensors that the
    architecture promises.
    """
    if facts.dense_share is not None or facts.architecture is None or not facts.config:
        return facts.dense_share or {}
    promised = [
        TensorInfo(name, "BF16", shape, 0, 2 * math.prod(shape))
        for name, shape in (expected_tensors(facts.config) or {}).items()
        if ".experts." not in name
    ]
    every = _by_kind((kind_of(it.name), it.size_bytes) for it in promised)
    return {
        kind: share
        for kind, share in _share_of_kinds(facts.config, promised).items()
        if abs(facts.weight_bytes.get(kind, 0) - every[kind]) < every[kind] / 20
    }


def known_layers(config: Mapping[str, Any]) -> tuple[Architecture | None, str]:
    """Return the layers of a config.json, or None and what that leaves unknown."""
    try:
        return architecture_of(config), ""
    except UnknownArchitectureError as error:
        return None, str(error)


def read_shipped_facts(path: Path) -> Mapping[str, ModelFacts]:
    models = read_document(path).content["models"]
    return {repo: _shipped(repo, entry) for repo, entry in models.items()}


def _shipped(repo: str, entry: Mapping[str, Any]) -> ModelFacts:
    architecture, unknown = known_layers(entry["config"])
    is_quoted = "quoted" in entry["weight_bytes"]
    how = "as others quote the files" if is_quoted else "derived from the architecture"
    return ModelFacts(
        repo,
        architecture,
        {WeightKind(kind): size for kind, size in entry["weight_bytes"]["values"].items()},
        f"facts file, {how} (nothing was downloaded)",
        unknown=unknown,
        described=Described(entry["config"]),
    )


def _by_kind(sizes: Iterable[tuple[WeightKind, int]]) -> dict[WeightKind, int]:
    """Add bytes up by kind; they come to the bytes of all tensors."""
    found: Counter[WeightKind] = Counter()
    for kind, size in sizes:
        found[kind] += size
    return {kind: found[kind] for kind in WeightKind if found[kind]}


def kinds_for(config: Mapping[str, Any]) -> Callable[[str], WeightKind]:
    """Return what tells a tensor's kind in a repository with this config.json.

    Layers beyond those that the configuration counts are draft layers, as DeepSeek and GLM store
    them.
    """
    text = config.get("text_config", config)
    count = text.get("num_hidden_layers") if isinstance(text, dict) else None
    layers = count if type(count) is int else None

    def kind(name: str) -> WeightKind:
        own, found = kind_of(name), _LAYER.search(name)
        is_beyond = layers is not None and found is not None and int(found[1]) >= layers
        if _DRAFTING.search(name) or (is_beyond and own not in TOWERS):
            return WeightKind.MTP_EXPERTS if _EXPERT.search(name) else WeightKind.MTP_DENSE
        return own

    return kind


def kind_of(name: str) -> WeightKind:
    """Return the kind of a tensor of the model itself, drafting layers apart."""
    return _kind_of_pattern(_NUMBER.sub(".0.", name))


@functools.lru_cache(maxsize=4096)
def _kind_of_pattern(name: str) -> WeightKind:
    """The names of a checkpoint differ by their numbers alone: a hundred thousand are some tens."""
    kind = next((kind for kind, rule in rules().items() if rule.search(name)), WeightKind.OTHER)
    if _EXPERT.search(name) and kind not in TOWERS:
        return WeightKind.EXPERTS
    if _GDN_NORM.search(name):
        return WeightKind.GDN if ".linear_attn." in name else WeightKind.MAMBA
    return kind


@functools.cache
def rules() -> Mapping[WeightKind, re.Pattern[str]]:
    table = yaml_text.load_file(Path(__file__).with_name("weight_kinds.yaml"))
    return {WeightKind(kind): re.compile(pattern) for kind, pattern in table.items()}


def drafting_layers(recipe: Recipe, facts: ModelFacts) -> tuple[Layer, ...]:
    """Return the layers that a drafter adds: the model's own for MTP, all of another model."""
    speculative = recipe.serve.speculative
    if speculative is None or facts.architecture is None:
        return ()
    if speculative.is_mtp:
        return facts.architecture.draft_layers
    drafter = facts.drafter.architecture if facts.drafter is not None else None
    return drafter.layers if drafter is not None else ()


ROTARY_TABLES = "rotary_emb.cos_sin_cache"


def bytes_in_memory(
    tensors: Sequence[TensorInfo], architecture: Architecture | None
) -> Iterator[tuple[str, int]]:
    """Yield names with the bytes that vLLM holds of them on one GPU.

    Embeddings and head are not padded to whole tiles of 64 rows here: it is less than a thousandth.
    """
    ties = architecture is not None and architecture.ties_embeddings
    for tensor in tensors:
        # A head that is stored and tied is loaded once, as the embeddings.
        if not (ties and tensor.name.startswith("lm_head.")):
            # A matrix of FP32 is loaded in the model's 16 bits; scales and vectors stay.
            is_matrix = len(tensor.shape) > 1 and "scale" not in tensor.name
            halves = is_matrix and tensor.dtype == "F32"
            yield tensor.name, tensor.size_bytes // 2 if halves else tensor.size_bytes
    if architecture is None:
        return
    widths: set[tuple[int, bool]] = set()
    for at, layer in enumerate(architecture.layers):
        for mixer in layer.mixers:
            if isinstance(mixer, Latent):
                # MLA keeps the two halves of kv_b_proj once more, in 16 bits, to decode with.
                elements = mixer.query_heads * mixer.head_width * mixer.rank
                yield f"model.layers.{at}.self_attn.kv_b_proj.weight", 2 * elements
                widths.add((mixer.rope_width, True))
            elif isinstance(mixer, Attention):
                widths.add((mixer.key_width, mixer.grows))
    # A row of FP32 for each position; layers with windows and those without have own tables.
    rows = 4 * architecture.max_position_embeddings
    yield ROTARY_TABLES, rows * sum(width for width, _ in widths)


def share_of_weights(total_bytes: int, ranks: int, embedding_bytes: int = 0) -> int:
    """Return the most bytes of weights that one rank holds; embeddings and head are whole."""
    kept = min(embedding_bytes, total_bytes)
    return kept - (kept - total_bytes) // ranks


def embedding_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of embeddings and head in 16 bits; 0 where a config.json does not say."""
    try:
        sizes = config_sizes(config)
        rows, width = (sizes.optional(name) or 0 for name in ("vocab_size", "hidden_size"))
    except CheckpointError:
        return 0
    return 2 * (1 if sizes.ties_embeddings else 2) * rows * width


def facts_of_rank(facts: ModelFacts, *, tensor_parallel: int, pipeline_parallel: int) -> ModelFacts:
    """Return the weights of the rank that holds most of them; a budget of them is that rank's.

    The layers stay those of the model: `tensor_ranks` and `stages` say how they are divided.
    """
    layers = len(facts.architecture.layers) if facts.architecture is not None else 0
    stage_layers = -(-layers // pipeline_parallel)

    def held(kind: WeightKind, size: int) -> int:
        if kind not in WHOLE | ON_ONE_STAGE and layers:
            size = -(-size * stage_layers // layers)
        return size if kind in WHOLE | REPEATED else -(-size // tensor_parallel)

    return _with_weights(facts, held, tensor_parallel, pipeline_parallel)


def facts_of_step(facts: ModelFacts, *, tensor_parallel: int) -> ModelFacts:
    """Return what is read one after the other in a decode step: one tensor parallel rank's share.

    The stages of a pipeline wait for each other, so their layers count together. The rows of the
    LM head (of tied embeddings) are divided as well.
    """

    def read(kind: WeightKind, size: int) -> int:
        is_whole = kind in REPEATED or kind in WHOLE - ENDS
        return size if is_whole else -(-size // tensor_parallel)

    return _with_weights(facts, read, tensor_parallel, 1)


def _with_weights(
    facts: ModelFacts, share: Callable[[WeightKind, int], int], tensor_ranks: int, stages: int
) -> ModelFacts:
    """The drafter of a model is divided as the model is by tensor parallel, and on one stage."""
    drafter = facts.drafter
    if drafter is not None:
        drafter = facts_of_rank(drafter, tensor_parallel=tensor_ranks, pipeline_parallel=1)
    return replace(
        facts,
        weight_bytes={kind: share(kind, size) for kind, size in facts.weight_bytes.items()},
        memory_bytes={kind: share(kind, size) for kind, size in facts.memory_bytes.items()},
        tensor_ranks=tensor_ranks,
        stages=stages,
        drafter=drafter,
    )
