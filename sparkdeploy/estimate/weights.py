"""Weight bytes: what a tensor belongs to, what vLLM holds of it, and what one rank holds of all.

vLLM divides a layer's matrices over the tensor parallel ranks and the layers over the pipeline's
stages (distributed/utils.py `get_pp_indices`); routers and norms are whole on every tensor
parallel rank. Embeddings and LM head are counted whole: vLLM divides their rows by tensor
parallel, but one stage may hold both, so the share is never too small.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from sparkdeploy.checkpoint.architecture import SIZE_LIMIT
from sparkdeploy.checkpoint.layers import Attention, Latent
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sparkdeploy.checkpoint.layers import Architecture
    from sparkdeploy.checkpoint.safetensors import TensorInfo
    from sparkdeploy.estimate.model_facts import ModelFacts


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
TOWERS: Final = frozenset({WeightKind.VISION, WeightKind.AUDIO})
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
        if _DRAFTING.search(name) or (is_beyond and kind_of(name) not in TOWERS):
            is_expert = _EXPERT.search(name) is not None
            return WeightKind.MTP_EXPERTS if is_expert else WeightKind.MTP_DENSE
        return kind_of(name)

    return kind


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
            yield tensor.name, _held(tensor)
    if architecture is not None:
        yield from _unfolded(architecture)
        yield ROTARY_TABLES, _rotary_bytes(architecture)


def _held(tensor: TensorInfo) -> int:
    """A matrix of FP32 is loaded in the model's 16 bits; scales and vectors stay as they are."""
    is_matrix = len(tensor.shape) > 1 and "scale" not in tensor.name
    return tensor.size_bytes // 2 if is_matrix and tensor.dtype == "F32" else tensor.size_bytes


def _unfolded(architecture: Architecture) -> Iterator[tuple[str, int]]:
    """MLA keeps the two halves of kv_b_proj once more, in 16 bits, to decode with."""
    for at, layer in enumerate(architecture.layers):
        for mixer in layer.mixers:
            if isinstance(mixer, Latent):
                elements = mixer.query_heads * mixer.head_width * mixer.rank
                yield f"model.layers.{at}.self_attn.kv_b_proj.weight", 2 * elements


def _rotary_bytes(architecture: Architecture) -> int:
    """A row of FP32 for each position; layers with windows and those without have own tables."""
    widths = {
        (mixer.rope_width, True) if isinstance(mixer, Latent) else (mixer.key_width, mixer.grows)
        for layer in architecture.layers
        for mixer in layer.mixers
        if isinstance(mixer, Latent | Attention)
    }
    return 4 * architecture.max_position_embeddings * sum(width for width, _ in widths)


REPEATED = frozenset({WeightKind.ROUTER, WeightKind.NORMS})
"""In every layer, and whole on every tensor parallel rank."""
ON_ONE_STAGE = TOWERS | {WeightKind.MTP_EXPERTS, WeightKind.MTP_DENSE}
"""Divided by tensor parallel alone."""
ENDS = frozenset({WeightKind.EMBEDDINGS, WeightKind.LM_HEAD})
"""Counted whole; of what is no layer's and no tower's nobody knows how it is divided."""
WHOLE = ENDS | {WeightKind.POOLING, WeightKind.TABLES, WeightKind.OTHER}
EMBEDDING_BYTES = 2
"""Of one element: embeddings are BF16 also where the layers are quantised."""


def share_of_weights(total_bytes: int, ranks: int, undivided_bytes: int = 0) -> int:
    """Return the most bytes that one rank holds of weights of which only the size is known.

    All but `undivided_bytes` (see `embedding_bytes`) is divided by the ranks of one copy.
    """
    kept = min(undivided_bytes, total_bytes)
    return kept - (kept - total_bytes) // ranks


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


def embedding_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of embeddings and LM head by a config.json; 0 where it does not say.

    Raises CheckpointError for sizes that no model has.
    """
    text = config.get("text_config", config)
    text = text if isinstance(text, dict) else {}
    vocabulary, hidden = text.get("vocab_size"), text.get("hidden_size")
    if not (isinstance(vocabulary, int) and isinstance(hidden, int)):
        return 0
    if max(vocabulary, hidden) > SIZE_LIMIT:
        raise CheckpointError(
            f"config.json: vocab_size or hidden_size is more than {SIZE_LIMIT}.",
            hint="download the model from an owner you trust",
        )
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)) is True
    return max(0, vocabulary * hidden * EMBEDDING_BYTES * (1 if tied else 2))
