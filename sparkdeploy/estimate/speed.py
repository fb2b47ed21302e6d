"""Speed: the layers that a decode step passes, the bytes that it moves, and how long both take.

A step takes `layers x layer_us + bytes / (share x bandwidth)`. Both numbers are fitted to all
figures that others published of a machine, or scaled to records of it; every estimate follows from
a recipe's layers, its bytes, and the acceptance of its drafts.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sparkdeploy.checkpoint.layers import Architecture, Attention, Latent, Mixer, Recurrent
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.cache_formats import token_bytes
from sparkdeploy.estimate.hardware import Hardware, MeasuredSpeed
from sparkdeploy.estimate.kv_cache import state_element_bytes
from sparkdeploy.estimate.memory import converted_weights
from sparkdeploy.estimate.model import ModelFacts, WeightKind, drafting_layers
from sparkdeploy.recipe.document import read_document
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.schema import Recipe, Speculative

CONTEXT_TOKENS = 1024
"""Short answers in the middle: the benchmark of the published figures asks for 64 to 2048."""
LEAST_BYTES = 100_000_000  # launches decide the speed of a smaller model
MISS_SHARE = 0.16
"""How far published figures lie from the estimates at most (docs/figures/estimates.md has each)."""
MARLIN_CALL_S = 9.6e-6
"""One INT4 product of a shared expert in Marlin, beside its bytes (H200, vLLM 0.25.1, where bytes
hardly count); on a GB10 nobody has measured it."""


class StepPart(StrEnum):
    """What bytes are read for in a step."""

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
class Acceptance:
    """How often the first, second ... drafted token is accepted, of all steps; an input."""

    positions: tuple[float, ...]
    source: str
    reported: int
    """How many of the positions somebody reported; the others are assumed."""
    assumption: str

    def tokens_per_step(self, drafted: int) -> float | None:
        """Return 1 and what is accepted of so many drafts; None beyond the known positions."""
        return 1 + sum(self.positions[:drafted]) if drafted <= len(self.positions) else None


def read_acceptance(path: Path) -> Mapping[str, Acceptance]:
    table = read_document(path).content["acceptance"]
    return {name: _acceptance(entry) for name, entry in table.items()}


def _acceptance(entry: Mapping[str, Any]) -> Acceptance:
    reported, assumed = entry.get("positions", []), entry.get("assumed", [])
    if "rate" in entry:
        assumed = [entry["rate"] ** at for at in range(1, entry["drafted"] + 1)]
    positions = (*reported, *assumed)
    return Acceptance(positions, entry["source"], len(reported), entry["assumption"])


def acceptance_of(
    speculative: Speculative, acceptance: Mapping[str, Acceptance]
) -> Acceptance | None:
    """Return what is known of a drafter: of MTP by its name, of another one by its repository."""
    return acceptance.get("mtp" if speculative.is_mtp else speculative.model or "")


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step of a number of requests: bytes moved by part, and tokens it yields each."""

    requests: int
    parts: Mapping[StepPart, float]
    tokens_per_request: float
    layers: int
    """Passed one after the other, a draft layer once for each draft."""
    is_dense_nvfp4: bool = False
    """Whether its attention and feed-forward are NVFP4 matrices that every token reads."""

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())


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
) -> DecodeStep | None:
    """Return a recipe's decode step; None of a tiny model, without a cache, or where it is unknown:

    the layers, the cache's format, the drafter's size or acceptance, what kinds most weights are.
    """
    recipe, architecture = resolved.recipe, facts.architecture
    tokens = _tokens_per_step(recipe.serve.speculative, facts, acceptance)
    if tokens is None or architecture is None or not architecture.keeps_cache:
        return None
    weights = converted_weights(facts, recipe)
    unknown = 2 * weights.get(WeightKind.OTHER, 0) > sum(weights.values())
    if facts.total_bytes < LEAST_BYTES or unknown:
        return None
    drafted = recipe.serve.speculative.tokens if recipe.serve.speculative is not None else 0
    rows = requests * (1 + drafted)
    parts: dict[StepPart, float] = dict.fromkeys(StepPart, 0.0)
    for kind, part in PART_OF_KIND.items():
        parts[part] += weights.get(kind, 0)
    parts[StepPart.EXPERTS] *= _share_reached(architecture, rows)
    parts[StepPart.HEAD] = _head_bytes(weights)
    parts[StepPart.STATE] = requests * _state_bytes(resolved, facts, architecture, drafted)
    try:
        parts[StepPart.CACHE] = requests * _cache_bytes(recipe, facts, context_tokens)
    except RecipeError:
        return None
    parts |= _drafting(recipe, facts, weights, requests)
    return DecodeStep(
        requests,
        {part: size for part, size in parts.items() if size},
        tokens,
        len(architecture.layers) + _passes(recipe) * len(drafting_layers(recipe, facts)),
        is_dense_nvfp4=architecture.experts is None and facts.is_nvfp4,
    )


def _passes(recipe: Recipe) -> int:
    """Return how often what drafts is passed: an MTP layer for each draft, another model once."""
    speculative = recipe.serve.speculative
    return speculative.tokens if speculative is not None and speculative.is_mtp else 1


def _tokens_per_step(
    speculative: Speculative | None, facts: ModelFacts, acceptance: Mapping[str, Acceptance]
) -> float | None:
    if speculative is None:
        return 1.0
    if not speculative.is_mtp and facts.drafter is None:
        return None
    known = acceptance_of(speculative, acceptance)
    return known.tokens_per_step(speculative.tokens) if known is not None else None


def _share_reached(architecture: Architecture, rows: int) -> float:
    experts = architecture.experts
    if experts is None:
        return 1.0
    return distinct_experts(experts.count, experts.chosen, rows) / experts.count


def _cache_bytes(recipe: Recipe, facts: ModelFacts, context_tokens: int) -> int:
    """Return what one request's cache takes to read in a step.

    The verified rows of a request go over it together; an MTP layer reads its own for every draft,
    a drafter that drafts a block at once reads its own once.
    """
    passes = _passes(recipe)
    own = facts.architecture.layers if facts.architecture is not None else ()
    layers = [*((it, 1) for it in own), *((it, passes) for it in drafting_layers(recipe, facts))]
    return sum(
        times * _read_bytes(mixer, recipe.serve.kv_cache_dtype, context_tokens, facts.tensor_ranks)
        for layer, times in layers
        for mixer in layer.mixers
    )


def _read_bytes(mixer: Mixer, kv_dtype: str, context_tokens: int, ranks: int) -> int:
    """Return what one layer reads of its cache in one pass: what is within its reach."""
    if isinstance(mixer, Latent):
        chosen = min(context_tokens, mixer.chosen_tokens or context_tokens)
        indexer = context_tokens * mixer.indexer_bytes
        return chosen * token_bytes(mixer, kv_dtype, ranks) + indexer
    if isinstance(mixer, Attention):
        reach = min(context_tokens, mixer.window or mixer.chunk or context_tokens)
        return reach * token_bytes(mixer, kv_dtype, ranks)
    return 0


def _state_bytes(
    resolved: Resolved, facts: ModelFacts, architecture: Architecture, drafted: int
) -> int:
    """Return what one request's states take: read once, and, for drafts, written for each row."""
    element_bytes = state_element_bytes(resolved)
    states = (it for layer in architecture.layers for it in layer.mixers)
    return sum(
        (2 + drafted)
        * it.state_bytes(ranks=facts.tensor_ranks, draft_tokens=drafted, memory_bytes=element_bytes)
        for it in states
        if isinstance(it, Recurrent)
    )


def _drafting(
    recipe: Recipe, facts: ModelFacts, weights: Mapping[WeightKind, int], requests: int
) -> dict[StepPart, float]:
    speculative, architecture = recipe.serve.speculative, facts.architecture
    if speculative is None or architecture is None:
        return {}
    if not speculative.is_mtp:
        return _drafting_at_once(recipe, facts, weights) if facts.drafter is not None else {}
    drafted = speculative.tokens
    # The draft layer once for each drafted token, the first time over all verified rows.
    rows = [requests * (1 + drafted), *[requests] * (drafted - 1)]
    reached = sum(_share_reached(architecture, row) for row in rows)
    layer = drafted * weights.get(WeightKind.MTP_DENSE, 0)
    return {
        StepPart.DRAFT_LAYER: layer + weights.get(WeightKind.MTP_EXPERTS, 0) * reached,
        StepPart.DRAFT_HEAD: drafted * _draft_head_bytes(recipe, facts, weights),
    }


def _draft_head_bytes(recipe: Recipe, facts: ModelFacts, weights: Mapping[WeightKind, int]) -> int:
    """What drafts read of the model's head: all, or rows with FP32 scales, dealt over ranks."""
    draft = recipe.checkpoint.draft_lm_head
    if draft is None or facts.architecture is None:
        return _head_bytes(weights)
    return -(-draft.rows // facts.tensor_ranks) * (facts.architecture.hidden_size + 4)


def _drafting_at_once(
    recipe: Recipe, facts: ModelFacts, weights: Mapping[WeightKind, int]
) -> dict[StepPart, float]:
    """A drafter of its own goes once over a whole block, and so does the served model's head.

    Its embeddings are looked up, and a head of its own is read instead of the model's.
    """
    own = dict(facts.drafter.memory_bytes) if facts.drafter is not None else {}
    own.pop(WeightKind.EMBEDDINGS, None)
    head = own.pop(WeightKind.LM_HEAD, None) or _draft_head_bytes(recipe, facts, weights)
    return {StepPart.DRAFT_LAYER: sum(own.values()), StepPart.DRAFT_HEAD: head}


def _head_bytes(weights: Mapping[WeightKind, int]) -> int:
    """A model that ties its embeddings has no head of its own and reads them instead."""
    return weights.get(WeightKind.LM_HEAD) or weights.get(WeightKind.EMBEDDINGS, 0)


@dataclass(frozen=True, slots=True)
class Speed:
    """How layers and bytes become time on a machine."""

    hardware: Hardware
    layer_s: float = 0.0
    bandwidth_share: float = 1.0
    nvfp4_dense_share: float = 1.0
    origin: str | None = None
    """What gave the numbers, in words that follow `fitted to`; None for an upper bound."""

    def duration_s(self, step: DecodeStep) -> float:
        share = self.nvfp4_dense_share if step.is_dense_nvfp4 else self.bandwidth_share
        return step.layers * self.layer_s + step.total_bytes / (
            share * self.hardware.bandwidth_bytes_s
        )

    def tokens_per_second(self, step: DecodeStep) -> float:
        """Return those of all requests together."""
        return step.requests * step.tokens_per_request / self.duration_s(step)


def fit_speed(
    hardware: Hardware,
    recipes: Mapping[str, Resolved],
    facts: Mapping[str, ModelFacts],
    acceptance: Mapping[str, Acceptance],
    measured: Sequence[MeasuredSpeed] = (),
) -> Speed:
    """Return a machine's speed: as published figures have it, scaled to the median of its records.

    Without either it is an upper bound, the whole bandwidth and nothing beside it.
    """
    speed = Speed(hardware)
    if fit := hardware.fit:
        speed = Speed(
            hardware,
            fit.layer_us / 1e6,
            fit.bandwidth_share,
            fit.nvfp4_dense_share,
            f"{fit.figures} figures that others published of such machines",
        )
    scales = [
        (item.end_to_end_tok_s / speed.tokens_per_second(step), item.recipe)
        for item in measured
        if (step := _measured_step(item, recipes, facts, acceptance)) is not None
    ]
    if not scales:
        return speed
    scale = statistics.median(it for it, _ in scales)
    names = sorted({name for _, name in scales})
    records = f"{len(scales)} records" if len(scales) > 1 else "1 record"
    return Speed(
        hardware,
        speed.layer_s / scale,
        speed.bandwidth_share * scale,
        speed.nvfp4_dense_share * scale,
        f"{records} of such a machine ({', '.join(names)})",
    )


def _measured_step(
    item: MeasuredSpeed,
    recipes: Mapping[str, Resolved],
    facts: Mapping[str, ModelFacts],
    acceptance: Mapping[str, Acceptance],
) -> DecodeStep | None:
    resolved = recipes.get(item.recipe)
    known = facts.get(resolved.recipe.model.known_as) if resolved is not None else None
    return decode_step(resolved, known, acceptance) if resolved and known else None


def launches_line(recipe: Recipe, facts: ModelFacts, speed: Speed) -> str | None:
    """Return that INT4 shared experts may cost more in launches than they save in bytes."""
    if recipe.checkpoint.shared_experts != "int4" or facts.architecture is None:
        return None
    int4_bytes = converted_weights(facts, recipe).get(WeightKind.SHARED_EXPERTS, 0)
    # FP8 has a byte where INT4 has half of one and a 64th for its scales.
    saved_bytes = int4_bytes * (1 - (1 / 2 + 1 / 64)) / (1 / 2 + 1 / 64)
    saved_s = saved_bytes / (speed.bandwidth_share * speed.hardware.bandwidth_bytes_s)
    added_s = 2 * len(facts.architecture.layers) * MARLIN_CALL_S
    if saved_s >= added_s:
        return None
    return (
        f"  shared experts in INT4 save {1000 * saved_s:.1f} ms of bytes a step beside FP8, and "
        f"their kernel may take {1000 * added_s:.1f} ms more: `bench pair` tells"
    )


def acceptance_lines(recipe: Recipe, acceptance: Mapping[str, Acceptance]) -> Iterator[str]:
    """Yield the rates that the tokens a step come from: who reported them, what is assumed."""
    speculative = recipe.serve.speculative
    known = acceptance_of(speculative, acceptance) if speculative is not None else None
    if speculative is None or known is None:
        return
    reported = known.positions[: min(known.reported, speculative.tokens)]
    assumed = known.positions[known.reported : speculative.tokens]
    name = "mtp" if speculative.is_mtp else str(speculative.model)
    rates = f" by position: {_rates(reported)}" if reported else ""
    yield f"  drafts of {name} accepted{rates} ({known.source})"
    if assumed:
        yield f"  assumed by position: {_rates(assumed)}, {known.assumption}"
    checkpoint = recipe.checkpoint
    if checkpoint.mtp_weights != "bf16" or checkpoint.draft_lm_head is not None:
        yield (
            "  of a 16-bit draft layer that drafts from all tokens: nobody has measured here what "
            "a converted one loses"
        )


def _rates(positions: Sequence[float]) -> str:
    return ", ".join(f"{rate:.0%}" for rate in positions)
