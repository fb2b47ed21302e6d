"""What one rank holds of a model's weights and cache when several GPUs serve it together.

vLLM divides a layer's matrices over the tensor parallel ranks and the layers over the pipeline's
stages (distributed/utils.py `get_pp_indices`); routers and norms are whole on every tensor
parallel rank. Embeddings and LM head are counted whole: vLLM divides their rows by tensor
parallel, but one stage may hold both, so the share is never too small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.model_facts import SIZE_LIMIT, WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.estimate.model_facts import ModelFacts

IN_EVERY_LAYER = {
    WeightKind.EXPERTS,
    WeightKind.SHARED_EXPERTS,
    WeightKind.ATTENTION,
    WeightKind.GDN,
}
"""Divided by tensor and by pipeline parallel."""
ON_ONE_STAGE = {WeightKind.MTP_EXPERTS, WeightKind.MTP_DENSE, WeightKind.VISION}
"""Divided by tensor parallel alone."""
REPEATED = {WeightKind.ROUTER, WeightKind.NORMS}
"""Divided by pipeline parallel alone."""
EMBEDDING_BYTES = 2
"""Of one element: embeddings are BF16 also where the layers are quantised."""


def share_of_weights(total_bytes: int, ranks: int, undivided_bytes: int = 0) -> int:
    """Return the most bytes that one rank holds of weights of which only the size is known.

    All but `undivided_bytes` (see `embedding_bytes`) is divided by the ranks of one copy.
    """
    kept = min(undivided_bytes, total_bytes)
    return kept - (kept - total_bytes) // ranks


def facts_of_rank(facts: ModelFacts, *, tensor_parallel: int, pipeline_parallel: int) -> ModelFacts:
    """Return the weights, heads and layers of the rank that holds most of them.

    Heads divide by tensor parallel down to one that every rank repeats: so a latent cache, which
    is one head, is whole on every rank. A budget of these facts is that of one rank.
    """
    a = facts.architecture
    layers = a.layers
    stage_layers = -(-layers // pipeline_parallel)

    def held(kind: WeightKind, size: int) -> int:
        if kind in IN_EVERY_LAYER | REPEATED and layers:
            size = -(-size * stage_layers // layers)
        return -(-size // tensor_parallel) if kind in IN_EVERY_LAYER | ON_ONE_STAGE else size

    return replace(
        facts,
        weight_bytes={kind: held(kind, size) for kind, size in facts.weight_bytes.items()},
        architecture=replace(
            a,
            num_key_value_heads=-(-a.num_key_value_heads // tensor_parallel),
            linear_num_key_heads=-(-a.linear_num_key_heads // tensor_parallel),
            linear_num_value_heads=-(-a.linear_num_value_heads // tensor_parallel),
            full_attention_layers=-(-a.full_attention_layers // pipeline_parallel),
            linear_attention_layers=-(-a.linear_attention_layers // pipeline_parallel),
        ),
    )


def facts_of_step(facts: ModelFacts, *, tensor_parallel: int) -> ModelFacts:
    """Return what is read one after the other in a decode step: one tensor parallel rank's share.

    The stages of a pipeline wait for each other, so their layers count together. The rows of the
    LM head (of tied embeddings) are divided as well.
    """
    held = facts_of_rank(facts, tensor_parallel=tensor_parallel, pipeline_parallel=1)
    head = {WeightKind.LM_HEAD, WeightKind.EMBEDDINGS}
    weights = {
        kind: -(-size // tensor_parallel) if kind in head else size
        for kind, size in held.weight_bytes.items()
    }
    return replace(held, weight_bytes=weights)


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
