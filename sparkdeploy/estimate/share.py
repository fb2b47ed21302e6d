"""What one rank holds of a model's weights and cache when several GPUs serve it together.

vLLM divides a layer's matrices over the tensor parallel ranks and the layers over the pipeline's
stages (distributed/utils.py `get_pp_indices`); routers and norms are whole on every tensor
parallel rank. Embeddings and LM head are counted whole: vLLM divides their rows by tensor
parallel, but one stage may hold both, so the share is never too small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint.family.config_sizes import SIZE_LIMIT
from sparkdeploy.checkpoint.family.kinds import WeightKind
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkdeploy.estimate.model_facts import ModelFacts

REPEATED = frozenset({WeightKind.ROUTER, WeightKind.NORMS})
"""In every layer, and whole on every tensor parallel rank."""
ON_ONE_STAGE = frozenset(
    {WeightKind.MTP_EXPERTS, WeightKind.MTP_DENSE, WeightKind.VISION, WeightKind.AUDIO}
)
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
