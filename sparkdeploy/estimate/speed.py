"""Speed: the bytes a decode step reads, and how long they take at a machine's bandwidth.

One number is fitted, to the published speed of one recipe: the share of the bandwidth that is
reached. Every other recipe's estimate follows from its bytes and its drafts' acceptance.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from sparkdeploy.checkpoint.family.kinds import WeightKind
from sparkdeploy.checkpoint.family.layers import Attention, Latent, Recurrent
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.capacity import treated_weights
from sparkdeploy.estimate.kv_formats import latent_bytes, slot_bytes
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.checkpoint.family.layers import Architecture, Mixer
    from sparkdeploy.estimate.hardware import Hardware
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Speculative

CONTEXT_TOKENS = 1024
"""Short answers in the middle: the benchmark of the published figures asks for 64 to 2048."""
KERNEL_SHARE = 0.84
"""Of the bandwidth: what albond/DGX_Spark_Qwen3.5-122B-A10B-AR-INT4 reports for its LM head."""
CLOSE_SHARE = 0.03


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
class Acceptance:
    """How often the first, second ... drafted token is accepted, of all steps; an input."""

    positions: tuple[float, ...]
    source: str


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step of a number of requests: bytes moved by part, and tokens it yields each."""

    requests: int
    parts: Mapping[StepPart, float]
    tokens_per_request: float

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Speed:
    """How a machine's bandwidth becomes time."""

    hardware: Hardware
    efficiency: float
    fitted_to: str | None
    """What gave the efficiency, in words; None for an upper bound."""
    launch_s: float = 0.0
    """Time a step of that recipe leaves unexplained when kernels reach `KERNEL_SHARE`."""

    def duration_s(self, step: DecodeStep) -> float:
        return step.total_bytes / (self.efficiency * self.hardware.bandwidth_bytes_s)

    def tokens_per_second(self, step: DecodeStep) -> float:
        """Of all requests together."""
        return step.requests * step.tokens_per_request / self.duration_s(step)

    def launched_apart(self, step: DecodeStep) -> float | None:
        """Return tokens a second with the launch cost counted once a step, not as bandwidth."""
        if self.fitted_to is None:
            return None
        return step.tokens_per_request / (_kernels_s(step, self.hardware) + self.launch_s)


def _kernels_s(step: DecodeStep, hardware: Hardware) -> float:
    return step.total_bytes / (KERNEL_SHARE * hardware.bandwidth_bytes_s)


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """One recipe's step and speed; tokens a second for one request."""

    name: str
    step: DecodeStep | None
    tok_s: float | None
    apart_tok_s: float | None
    """The same with the launch cost counted once a step instead of as bandwidth."""
    published_tok_s: float | None
    has_own_cache_format: bool = False
    needs_a_fork: bool = False

    @property
    def miss(self) -> float | None:
        if self.tok_s is None or self.published_tok_s is None:
            return None
        return self.tok_s / self.published_tok_s - 1


def read_acceptance(path: Path) -> Mapping[str, Acceptance]:
    table = read_document(path).content["acceptance"]
    return {
        method: Acceptance(tuple(entry["positions"]), entry["source"])
        for method, entry in table.items()
    }


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """A recipe's speed on a machine of one kind, as somebody's record has it."""

    recipe: str
    end_to_end_tok_s: float
    run_id: str


def fit_speed(
    hardware: Hardware,
    recipes: Mapping[str, Resolved],
    facts: Mapping[str, ModelFacts],
    acceptance: Mapping[str, Acceptance],
    measured: Sequence[MeasuredSpeed] = (),
) -> Speed:
    """Return the machine's speed: records of it give the efficiency, else one published figure.

    Of several records the median counts. Without any the efficiency is 1.
    """
    bound, fit = Speed(hardware, 1.0, None), hardware.fit
    if not measured and fit is not None:
        measured = (MeasuredSpeed(fit.recipe, fit.end_to_end_tok_s, ""),)
    fitted = []
    for item in measured:
        resolved = recipes.get(item.recipe)
        known = facts.get(resolved.recipe.model.known_as) if resolved is not None else None
        step = decode_step(resolved, known, acceptance) if resolved and known else None
        if step is not None:
            fitted.append((item.end_to_end_tok_s / bound.tokens_per_second(step), item, step))
    if not fitted:
        return bound
    efficiency = statistics.median(share for share, _, _ in fitted)
    _, item, step = min(fitted, key=lambda row: abs(row[0] - efficiency))
    launch_s = step.tokens_per_request / item.end_to_end_tok_s - _kernels_s(step, hardware)
    return Speed(hardware, efficiency, _origin(measured), max(0.0, launch_s))


def _origin(measured: Sequence[MeasuredSpeed]) -> str:
    """Return what the efficiency was fitted to, in words that follow `fitted to`."""
    if not measured[0].run_id:
        return f"{measured[0].recipe} = {measured[0].end_to_end_tok_s:g} tok/s"
    records = f"{len(measured)} records" if len(measured) > 1 else "1 record"
    names = sorted({item.recipe for item in measured})
    return f"{records} of such a machine ({', '.join(names)})"


def estimate(
    resolved: Resolved,
    facts: Mapping[str, ModelFacts],
    acceptance: Mapping[str, Acceptance],
    speed: Speed,
) -> SpeedEstimate:
    """Return one recipe's estimate; without a step when something it needs is not known."""
    recipe = resolved.recipe
    known = facts.get(recipe.model.known_as)
    step = decode_step(resolved, known, acceptance) if known is not None else None
    return SpeedEstimate(
        name=recipe.name,
        step=step,
        tok_s=speed.tokens_per_second(step) if step is not None else None,
        apart_tok_s=speed.launched_apart(step) if step is not None else None,
        published_tok_s=recipe.expect.tok_s if recipe.expect is not None else None,
        has_own_cache_format=recipe.serve.kv_cache_dtype.startswith("turboquant"),
        needs_a_fork=recipe.preview is not None,
    )


def miss_reasons(made: SpeedEstimate) -> Iterator[str]:
    """Yield why an estimate is off; nothing is corrected by it."""
    if made.step is None:
        yield "no estimate: the size or the acceptance of its drafter is not known"
        return
    miss = made.miss
    if miss is None or abs(miss) <= CLOSE_SHARE:
        return
    if made.needs_a_fork:
        yield "published with a fork of vLLM, whose kernels may read other bytes than counted here"
        return
    if made.has_own_cache_format:
        yield (
            "published with a cache format of its author's own, whose decode kernel walks a "
            "sequence key by key: time that bytes do not show; at long context the cache counts, "
            "here not"
        )
        return
    if miss < 0 and made.apart_tok_s is not None and made.step.tokens_per_request > 1:
        yield (
            "one factor charges the fixed cost of a step (launches, scheduling) by the byte, and "
            f"this step has more bytes; counted once a step it would be {made.apart_tok_s:.1f}"
        )
        yield "the rows of one request choose alike, so fewer experts are read than counted"
    if miss > 0:
        yield (
            "its step is shorter than the one the factor was fitted to, so fixed costs weigh more"
        )


def in_order(recipes: Mapping[str, Resolved]) -> Sequence[Resolved]:
    """Return recipes as they build on each other: parents first, then by name."""

    def depth(name: str | None) -> int:
        found = recipes.get(name) if name is not None else None
        if found is None:
            return 0
        # A user's v2 that extends v2 means the shipped one, which is not among them.
        base = found.recipe.extends
        return 1 if base == name else 1 + depth(base)

    return [recipes[name] for name in sorted(recipes, key=lambda name: (depth(name), name))]


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
    """Return a recipe's decode step, or None when something it needs is not known.

    That is the model's layers, its cache's format, its drafter's size or acceptance; a model that
    keeps no cache has no such step.
    """
    speculative, architecture = resolved.recipe.serve.speculative, facts.architecture
    tokens = _tokens_per_step(speculative, acceptance)
    if tokens is None or architecture is None or not architecture.keeps_cache:
        return None
    drafted = speculative.tokens if speculative is not None else 0
    weights = treated_weights(facts, resolved.recipe)
    if 2 * weights.get(WeightKind.OTHER, 0) > sum(weights.values()):
        # Of files whose headers nobody has read, what a step reads of them is not known.
        return None
    parts = _verifying(architecture, weights, rows=requests * (1 + drafted))
    try:
        parts |= _remembering(resolved, facts, architecture, requests, context_tokens)
    except RecipeError:
        return None
    if drafted:
        parts |= _drafting(resolved, architecture, weights, requests=requests, drafted=drafted)
    return DecodeStep(requests, {part: parts[part] for part in StepPart if parts.get(part)}, tokens)


def _tokens_per_step(
    speculative: Speculative | None, acceptance: Mapping[str, Acceptance]
) -> float | None:
    if speculative is None:
        return 1.0
    if not speculative.is_mtp or "mtp" not in acceptance:
        return None
    known, drafted = acceptance["mtp"].positions, speculative.tokens
    return 1 + sum(known[:drafted]) if drafted <= len(known) else None


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


def _remembering(
    resolved: Resolved,
    facts: ModelFacts,
    architecture: Architecture,
    requests: int,
    context_tokens: int,
) -> dict[StepPart, float]:
    """What each request keeps: KV cache is read, a state read and written for each row.

    With drafts vLLM stores the state after every row, to go back to the last accepted one.
    """
    serve = resolved.recipe.serve
    drafted = serve.speculative.tokens if serve.speculative is not None else 0
    drafting = architecture.draft_layers if drafted else ()
    passes = [(layer, 1) for layer in architecture.layers]
    passes += [(layer, drafted) for layer in drafting]
    cache = sum(
        times * _read_bytes(mixer, serve.kv_cache_dtype, context_tokens, facts.tensor_ranks)
        for layer, times in passes
        for mixer in layer.mixers
    )
    state = sum(
        mixer.state_bytes(ranks=facts.tensor_ranks, draft_tokens=drafted) * (2 + drafted)
        for layer in architecture.layers
        for mixer in layer.mixers
        if isinstance(mixer, Recurrent)
    )
    return {StepPart.CACHE: requests * cache, StepPart.STATE: requests * state}


def _read_bytes(mixer: Mixer, kv_dtype: str, context_tokens: int, ranks: int) -> int:
    """Return what one layer reads of its cache for one row: what is within its reach."""
    if isinstance(mixer, Latent):
        chosen = min(context_tokens, mixer.chosen_tokens or context_tokens)
        return chosen * latent_bytes(kv_dtype, mixer) + context_tokens * mixer.indexer_bytes
    if isinstance(mixer, Attention):
        reach = min(context_tokens, mixer.window or mixer.chunk or context_tokens)
        heads = max(1, mixer.kv_heads // ranks)
        return reach * heads * slot_bytes(kv_dtype, mixer.key_width, mixer.value_width)
    return 0


def _drafting(
    resolved: Resolved,
    architecture: Architecture,
    weights: Mapping[WeightKind, int],
    *,
    requests: int,
    drafted: int,
) -> dict[StepPart, float]:
    """The draft layer once for each drafted token, the first time over all verified rows."""
    rows = [requests * (1 + drafted), *[requests] * (drafted - 1)]
    reached = sum(_share_reached(architecture, row) for row in rows)
    experts = weights.get(WeightKind.MTP_EXPERTS, 0) * reached
    draft = resolved.recipe.checkpoint.draft_lm_head
    # The rows of a draft head have FP32 scales.
    head = draft.rows * (architecture.hidden_size + 4) if draft else _head_bytes(weights)
    return {
        StepPart.DRAFT_LAYER: drafted * weights.get(WeightKind.MTP_DENSE, 0) + experts,
        StepPart.DRAFT_HEAD: drafted * head,
    }


def _head_bytes(weights: Mapping[WeightKind, int]) -> int:
    """A model that ties its embeddings has no head of its own and reads them instead."""
    return weights.get(WeightKind.LM_HEAD) or weights.get(WeightKind.EMBEDDINGS, 0)
