"""What one rank holds of a model's weights when several GPUs serve it together.

vLLM divides a layer's matrices over the tensor parallel ranks and the layers over the pipeline's
stages (distributed/utils.py `get_pp_indices`); routers and norms are whole on every tensor
parallel rank. Embeddings and LM head are counted whole: vLLM divides their rows by tensor
parallel, but one stage may hold both, so the share is never too small.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from sparkdeploy.estimate.model_facts import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.estimate.model_facts import ModelFacts

DIVIDED = {Kind.EXPERTS, Kind.SHARED_EXPERTS, Kind.ATTENTION, Kind.GDN}
"""By tensor and by pipeline parallel."""
DIVIDED_BY_TENSOR = {Kind.MTP_EXPERTS, Kind.MTP_DENSE, Kind.VISION}
"""They stand on one stage of the pipeline."""
DIVIDED_BY_PIPELINE = {Kind.ROUTER, Kind.NORMS}
EMBEDDING_BYTES = 2
"""Of one element: embeddings are BF16 also where the layers are quantised."""


def share_of_weights(
    total_bytes: int,
    facts: ModelFacts | None,
    *,
    tensor_parallel: int,
    pipeline_parallel: int,
    undivided_bytes: int = 0,
) -> int:
    """Return the most bytes that one rank holds of weights of `total_bytes`.

    Without facts, all but `undivided_bytes` (see `embedding_bytes`) is divided by all ranks of
    a copy. Data parallel divides nothing: every copy is whole.
    """
    if facts is None or not facts.total_bytes:
        kept = min(undivided_bytes, total_bytes)
        return kept - (kept - total_bytes) // (tensor_parallel * pipeline_parallel)
    shares = shares_of_kinds(
        facts, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel
    )
    held = sum(size * shares[kind] for kind, size in facts.weight_bytes.items())
    return ceil(total_bytes * held / facts.total_bytes)


def shares_of_kinds(
    facts: ModelFacts, *, tensor_parallel: int, pipeline_parallel: int
) -> Mapping[Kind, Fraction]:
    """Return the part of each kind of weights that the rank with the most layers holds."""
    layers = max(facts.architecture.layers, 1)
    by_tensor = Fraction(1, tensor_parallel)
    by_pipeline = Fraction(ceil(layers / pipeline_parallel), layers)
    return {
        kind: (by_tensor if kind in DIVIDED | DIVIDED_BY_TENSOR else Fraction(1))
        * (by_pipeline if kind in DIVIDED | DIVIDED_BY_PIPELINE else 1)
        for kind in Kind
    }


def embedding_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of embeddings and LM head by a config.json; 0 where it does not say."""
    text = config.get("text_config", config)
    text = text if isinstance(text, dict) else {}
    vocabulary, hidden = text.get("vocab_size"), text.get("hidden_size")
    if not (isinstance(vocabulary, int) and isinstance(hidden, int)):
        return 0
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)) is True
    return max(0, vocabulary * hidden * EMBEDDING_BYTES * (1 if tied else 2))
