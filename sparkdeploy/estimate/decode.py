"""A decode step: the bytes it reads by part, and the tokens it yields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from sparkdeploy.checkpoint.family.kinds import WeightKind
from sparkdeploy.checkpoint.family.layers import Attention, Latent, Recurrent
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.acceptance import acceptance_of
from sparkdeploy.estimate.capacity import treated_weights
from sparkdeploy.estimate.kv_formats import latent_bytes, slot_bytes
from sparkdeploy.estimate.layout import state_element_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checkpoint.family.layers import Architecture, Layer, Mixer
    from sparkdeploy.estimate.acceptance import Acceptance
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe, Speculative

CONTEXT_TOKENS = 1024
"""Short answers in the middle: the benchmark of the published figures asks for 64 to 2048."""


class StepPart(StrEnum):
    """What bytes are read for in a step; the order is that of the picture."""

    EXPERTS = "routed experts"
    RECURRENT = "recurrent weights"
    STATE = "recurrent state"
    SHARED = "shared experts"
    FEED_FORWARD = "feed-forward"
    ATTENTION = "attention"
    CACHE = "KV cache"
    SMALL = "router and norms"
    HEAD = "LM head"
    DRAFT_LAYER = "draft layer"
    DRAFT_HEAD = "LM head for drafts"


PART_OF_KIND: Final = {
    WeightKind.EXPERTS: StepPart.EXPERTS,
    WeightKind.GDN: StepPart.RECURRENT,
    WeightKind.MAMBA: StepPart.RECURRENT,
    WeightKind.SHARED_EXPERTS: StepPart.SHARED,
    WeightKind.FEED_FORWARD: StepPart.FEED_FORWARD,
    WeightKind.ATTENTION: StepPart.ATTENTION,
    WeightKind.ROUTER: StepPart.SMALL,
    WeightKind.NORMS: StepPart.SMALL,
}
"""What a decode step reads of the weights; embeddings are looked up, towers are not asked."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step of a number of requests: bytes moved by part, and tokens it yields each."""

    requests: int
    parts: Mapping[StepPart, float]
    tokens_per_request: float
    kv_cache_dtype: str = "auto"
    attention_passes: int = 0
    """How often a layer goes over its cache: the model's once, those that draft once a draft."""
    query_rows: int = 1
    """Query heads that share a KV head, times the tokens that a request has verified at once."""

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())

    @property
    def cache_bytes(self) -> float:
        """Return the part that attention reads at a pace of its own."""
        return self.parts.get(StepPart.CACHE, 0.0)


def distinct_experts(experts: int, chosen: int, rows: int) -> float:
    """Return how many different experts `rows` tokens reach when each chooses independently.

    E (1 - (1 - k/E)^rows): an upper bound, since neighbouring tokens choose alike.
    """
    return experts * (1 - (1 - chosen / experts) ** rows)


def decode_step(
    resolved: Resolved,
    facts: ModelFacts,
    acceptance: Mapping[str, Acceptance],
    *,
    requests: int = 1,
    context_tokens: int = CONTEXT_TOKENS,
    kv_cache_dtype: str | None = None,
) -> DecodeStep | None:
    """Return a recipe's decode step, or None when something it needs is not known.

    `kv_cache_dtype` is another format than the recipe's. What has to be known is the model's
    layers, its cache's format, its drafter's size or acceptance; a model that keeps no cache has no
    such step.
    """
    speculative, architecture = resolved.recipe.serve.speculative, facts.architecture
    tokens = _tokens_per_step(speculative, facts, acceptance)
    if tokens is None or architecture is None or not architecture.keeps_cache:
        return None
    drafted = speculative.tokens if speculative is not None else 0
    weights = treated_weights(facts, resolved.recipe)
    if 2 * weights.get(WeightKind.OTHER, 0) > sum(weights.values()):
        # Of files whose headers nobody has read, what a step reads of them is not known.
        return None
    parts = _verifying(architecture, weights, rows=requests * (1 + drafted))
    passes = _passes(facts, architecture, speculative)
    kv_dtype = kv_cache_dtype or resolved.recipe.serve.kv_cache_dtype
    try:
        cache = _cache_bytes(passes, kv_dtype, context_tokens, facts.tensor_ranks)
    except RecipeError:
        return None
    parts[StepPart.CACHE] = requests * cache
    parts[StepPart.STATE] = requests * _state_bytes(resolved, facts, architecture, drafted)
    parts |= _drafting(resolved.recipe, facts, architecture, weights, requests)
    return DecodeStep(
        requests,
        {part: parts[part] for part in StepPart if parts.get(part)},
        tokens,
        kv_dtype,
        sum(times * _attends(layer) for layer, times in passes),
        (1 + drafted) * _most_heads_a_kv_head(architecture),
    )


def _most_heads_a_kv_head(architecture: Architecture) -> int:
    return max(
        (
            mixer.query_heads // mixer.kv_heads
            for layer in architecture.layers
            for mixer in layer.mixers
            if isinstance(mixer, Attention)
        ),
        default=1,
    )


def _tokens_per_step(
    speculative: Speculative | None, facts: ModelFacts, acceptance: Mapping[str, Acceptance]
) -> float | None:
    if speculative is None:
        return 1.0
    if not speculative.is_mtp and facts.drafter is None:
        return None
    known = acceptance_of(speculative, acceptance)
    return known.tokens_per_step(speculative.tokens) if known is not None else None


def _verifying(
    architecture: Architecture, weights: Mapping[WeightKind, int], *, rows: int
) -> dict[StepPart, float]:
    """The model itself: every dense weight once, and of the experts those that rows reach."""
    parts: dict[StepPart, float] = dict.fromkeys(StepPart, 0.0)
    for kind, part in PART_OF_KIND.items():
        parts[part] += weights.get(kind, 0)
    parts[StepPart.EXPERTS] *= _share_reached(architecture, rows)
    parts[StepPart.HEAD] = _head_bytes(weights)
    return parts


def _share_reached(architecture: Architecture, rows: int) -> float:
    experts = architecture.experts
    if experts is None:
        return 1.0
    return distinct_experts(experts.count, experts.chosen, rows) / experts.count


def _passes(
    facts: ModelFacts, architecture: Architecture, speculative: Speculative | None
) -> list[tuple[Layer, int]]:
    """Return each layer with how often a step goes over its cache.

    The verified rows of a request go over it together, so the model's own layers read it once a
    step however many tokens were drafted; an MTP layer reads its own for every draft, a drafter
    that drafts a block at once reads its own once.
    """
    passes = [(layer, 1) for layer in architecture.layers]
    if speculative is not None and speculative.is_mtp:
        passes += [(layer, speculative.tokens) for layer in architecture.draft_layers]
    elif speculative is not None and facts.drafter is not None and facts.drafter.architecture:
        passes += [(layer, 1) for layer in facts.drafter.architecture.layers]
    return passes


def _attends(layer: Layer) -> int:
    return sum(isinstance(mixer, Attention | Latent) for mixer in layer.mixers)


def _cache_bytes(
    passes: list[tuple[Layer, int]], kv_dtype: str, context_tokens: int, ranks: int
) -> int:
    """What one request's cache takes to read in a step."""
    return sum(
        times * _read_bytes(mixer, kv_dtype, context_tokens, ranks)
        for layer, times in passes
        for mixer in layer.mixers
    )


def _state_bytes(
    resolved: Resolved, facts: ModelFacts, architecture: Architecture, drafted: int
) -> int:
    """What one request's states take: read once, and written for each row.

    With drafts vLLM stores the state after every row, to go back to the last accepted one.
    """
    element_bytes = state_element_bytes(resolved)
    return sum(
        mixer.state_bytes(
            ranks=facts.tensor_ranks, draft_tokens=drafted, memory_bytes=element_bytes
        )
        * (2 + drafted)
        for layer in architecture.layers
        for mixer in layer.mixers
        if isinstance(mixer, Recurrent)
    )


def _read_bytes(mixer: Mixer, kv_dtype: str, context_tokens: int, ranks: int) -> int:
    """Return what one layer reads of its cache in one pass: what is within its reach."""
    if isinstance(mixer, Latent):
        chosen = min(context_tokens, mixer.chosen_tokens or context_tokens)
        return chosen * latent_bytes(kv_dtype, mixer) + context_tokens * mixer.indexer_bytes
    if isinstance(mixer, Attention):
        reach = min(context_tokens, mixer.window or mixer.chunk or context_tokens)
        heads = max(1, mixer.kv_heads // ranks)
        return reach * heads * slot_bytes(kv_dtype, mixer.key_width, mixer.value_width)
    return 0


def _drafting(
    recipe: Recipe,
    facts: ModelFacts,
    architecture: Architecture,
    weights: Mapping[WeightKind, int],
    requests: int,
) -> dict[StepPart, float]:
    speculative = recipe.serve.speculative
    if speculative is None:
        return {}
    if not speculative.is_mtp:
        return _drafting_at_once(facts.drafter, weights) if facts.drafter is not None else {}
    drafted = speculative.tokens
    head = _draft_head_bytes(recipe, facts, architecture, weights)
    layer = _draft_layer_bytes(architecture, weights, requests=requests, drafted=drafted)
    return {StepPart.DRAFT_LAYER: layer, StepPart.DRAFT_HEAD: drafted * head}


def _draft_layer_bytes(
    architecture: Architecture,
    weights: Mapping[WeightKind, int],
    *,
    requests: int,
    drafted: int,
) -> float:
    """The draft layer once for each drafted token, the first time over all verified rows."""
    rows = [requests * (1 + drafted), *[requests] * (drafted - 1)]
    reached = sum(_share_reached(architecture, row) for row in rows)
    experts = weights.get(WeightKind.MTP_EXPERTS, 0) * reached
    return drafted * weights.get(WeightKind.MTP_DENSE, 0) + experts


def _draft_head_bytes(
    recipe: Recipe,
    facts: ModelFacts,
    architecture: Architecture,
    weights: Mapping[WeightKind, int],
) -> int:
    """What one draft reads of a head; a draft head's rows are dealt evenly over ranks."""
    draft = recipe.checkpoint.draft_lm_head
    if draft is None:
        return _head_bytes(weights)
    # The rows of a draft head have FP32 scales.
    return -(-draft.rows // facts.tensor_ranks) * (architecture.hidden_size + 4)


def _drafting_at_once(
    drafter: ModelFacts, weights: Mapping[WeightKind, int]
) -> dict[StepPart, float]:
    """A drafter of its own goes once over a whole block, and so does the served model's head.

    Its embeddings are looked up, and a head of its own is read instead of the model's.
    """
    held = dict(drafter.memory_bytes)
    held.pop(WeightKind.EMBEDDINGS, None)
    head = held.pop(WeightKind.LM_HEAD, None) or _head_bytes(weights)
    return {StepPart.DRAFT_LAYER: sum(held.values()), StepPart.DRAFT_HEAD: head}


def _head_bytes(weights: Mapping[WeightKind, int]) -> int:
    """A model that ties its embeddings has no head of its own and reads them instead."""
    return weights.get(WeightKind.LM_HEAD) or weights.get(WeightKind.EMBEDDINGS, 0)
