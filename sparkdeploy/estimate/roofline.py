"""Speed: the bytes a decode step reads, and how long they take at a machine's bandwidth.

One number is fitted, to the published speed of one recipe: the share of the bandwidth that is
reached. Every other recipe's estimate follows from its bytes and its drafts' acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sparkdeploy.estimate.budget import layout_of, treated_weights
from sparkdeploy.estimate.model_facts import Kind
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Speculative

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXT_TOKENS = 1024
"""Short answers in the middle, as in the field's benchmark (reference-system.md section 8)."""


class Part(StrEnum):
    """What bytes are read for in a step; the order is that of the picture."""

    EXPERTS = "routed experts"
    GDN = "Gated DeltaNet weights"
    STATE = "Gated DeltaNet state"
    SHARED = "shared experts"
    ATTENTION = "attention"
    CACHE = "KV cache"
    SMALL = "router and norms"
    HEAD = "LM head"
    DRAFT_LAYER = "draft layer"
    DRAFT_HEAD = "LM head for drafts"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often the first, second ... drafted token is accepted, of all steps; an input."""

    positions: tuple[float, ...]
    source: str

    def tokens_per_step(self, drafted: int) -> float | None:
        """Return the tokens of a step, or None when no rate is known for that many drafts."""
        if drafted > len(self.positions):
            return None
        return 1 + sum(self.positions[:drafted])


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step of a number of requests: bytes moved by part, and tokens it yields each."""

    requests: int
    parts: Mapping[Part, float]
    tokens_per_request: float

    @property
    def total_bytes(self) -> float:
        """Return all bytes of the step."""
        return sum(self.parts.values())

    def duration_s(self, bandwidth_bytes_s: float) -> float:
        """Return how long the bytes take at this bandwidth."""
        return self.total_bytes / bandwidth_bytes_s

    def tokens_per_second(self, bandwidth_bytes_s: float) -> float:
        """Return the tokens of all requests together."""
        return self.requests * self.tokens_per_request / self.duration_s(bandwidth_bytes_s)


def read_acceptance(path: Path) -> Mapping[str, Acceptance]:
    """Return the acceptance rates of the shipped file by method."""
    table = read_document(path).content["acceptance"]
    return {
        method: Acceptance(tuple(entry["positions"]), entry["source"])
        for method, entry in table.items()
    }


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
) -> Step | None:
    """Return a recipe's decode step, or None when its drafter's size or acceptance is unknown."""
    speculative = resolved.recipe.serve.speculative
    tokens = _tokens_per_step(speculative, acceptance)
    if tokens is None:
        return None
    drafted = speculative.tokens if speculative is not None else 0
    parts = _verifying(resolved, facts, rows=requests * (1 + drafted))
    parts |= _remembering(resolved, facts, requests=requests, context_tokens=context_tokens)
    if drafted:
        parts |= _drafting(resolved, facts, requests=requests, drafted=drafted)
    return Step(requests, {part: parts[part] for part in Part if parts.get(part)}, tokens)


def _tokens_per_step(
    speculative: Speculative | None, acceptance: Mapping[str, Acceptance]
) -> float | None:
    if speculative is None:
        return 1.0
    if speculative.model is not None or speculative.method not in acceptance:
        return None
    return acceptance[speculative.method].tokens_per_step(speculative.tokens)


def _verifying(resolved: Resolved, facts: ModelFacts, *, rows: int) -> dict[Part, float]:
    """The model itself: every dense weight once, and of the experts those that rows reach."""
    weights = treated_weights(facts, resolved.recipe.checkpoint)
    a = facts.architecture
    reached = distinct_experts(a.num_experts, a.num_experts_per_tok, rows) / a.num_experts
    return {
        Part.EXPERTS: weights.get(Kind.EXPERTS, 0) * reached,
        Part.GDN: weights.get(Kind.GDN, 0),
        Part.SHARED: weights.get(Kind.SHARED_EXPERTS, 0),
        Part.ATTENTION: weights.get(Kind.ATTENTION, 0),
        Part.SMALL: weights.get(Kind.ROUTER, 0) + weights.get(Kind.NORMS, 0),
        Part.HEAD: _head_bytes(weights),
    }


def _remembering(
    resolved: Resolved, facts: ModelFacts, *, requests: int, context_tokens: int
) -> dict[Part, float]:
    """What each request keeps: KV cache is read, a DeltaNet state read and written for each row.

    With drafts vLLM stores the state after every row, to go back to the last accepted one.
    """
    layout = layout_of(resolved, facts)
    speculative = resolved.recipe.serve.speculative
    rows = 1 + (speculative.tokens if speculative is not None else 0)
    draft_layers = layout.attention_layers - facts.architecture.full_attention_layers
    passes = facts.architecture.full_attention_layers + draft_layers * (rows - 1)
    states = facts.architecture.linear_attention_layers * (1 + rows)
    return {
        Part.CACHE: requests * passes * context_tokens * layout.token_bytes,
        Part.STATE: requests * states * layout.state_bytes,
    }


def _drafting(
    resolved: Resolved, facts: ModelFacts, *, requests: int, drafted: int
) -> dict[Part, float]:
    """The draft layer once for each drafted token, the first time over all verified rows."""
    weights = treated_weights(facts, resolved.recipe.checkpoint)
    a = facts.architecture
    rows = [requests * (1 + drafted), *[requests] * (drafted - 1)]
    reached = sum(distinct_experts(a.num_experts, a.num_experts_per_tok, row) for row in rows)
    experts = weights.get(Kind.MTP_EXPERTS, 0) * reached / a.num_experts
    return {
        Part.DRAFT_LAYER: drafted * weights.get(Kind.MTP_DENSE, 0) + experts,
        Part.DRAFT_HEAD: drafted * _draft_head_bytes(resolved, facts, weights),
    }


def _draft_head_bytes(resolved: Resolved, facts: ModelFacts, weights: Mapping[Kind, int]) -> int:
    """The rows of a draft head with their FP32 scales, or the whole head."""
    draft = resolved.recipe.checkpoint.draft_lm_head
    if draft is None:
        return _head_bytes(weights)
    return draft.rows * (facts.architecture.hidden_size + 4)


def _head_bytes(weights: Mapping[Kind, int]) -> int:
    """A model that ties its embeddings has no head of its own and reads them instead."""
    return weights.get(Kind.LM_HEAD) or weights.get(Kind.EMBEDDINGS, 0)
