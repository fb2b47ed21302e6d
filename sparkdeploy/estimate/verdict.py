"""The first line of an estimate: fits or not, how many requests, about how fast, on what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.estimate.speed import MISS_SHARE
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.estimate.memory import Budget
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.schema import Recipe


class Fits(Enum):
    YES = "fits"
    NO = "does not fit"
    UNKNOWN = "may fit"


@dataclass(frozen=True, slots=True)
class FitVerdict:
    fits: Fits
    requests: float | None
    """At once, at the recipe's context; None where the cache is not known or there is none."""
    context_tokens: int | None
    tok_s: float | None
    """Of one request, by its bytes; None where something is not known, and for a model that writes
    no text."""
    reason: str
    """Why it does not fit, or what is not known."""
    writes_text: bool = True
    reported_tok_s: float | None = None
    """What others reported of this recipe on such a machine."""


def verdict_of(
    recipe: Recipe,
    budget: Budget,
    facts: ModelFacts,
    *,
    tok_s: float | None,
    reported_tok_s: float | None = None,
) -> FitVerdict:
    row = budget.longest
    taken = budget.weight_bytes + budget.reserve_bytes
    context, requests = (row.context_tokens, row.concurrency) if row else (None, None)
    writes_text = recipe.serve.runner != "pooling"
    tok_s = tok_s if writes_text else None
    if taken >= budget.claim_bytes:
        reason = (
            f"weights and reserves take {format_gib(taken)} of the "
            f"{format_gib(budget.claim_bytes)} that vLLM may use"
        )
        return FitVerdict(Fits.NO, None, context, None, reason)
    if row is not None and row.concurrency < 1:
        reason = (
            f"one request of {row.context_tokens:,} tokens needs more than the "
            f"{format_gib(budget.available_bytes)} left for its cache"
        )
        return FitVerdict(Fits.NO, requests, context, None, reason)
    if budget.unknown:
        reason = (
            f"weights and reserves take {format_gib(taken)} of {format_gib(budget.claim_bytes)}, "
            f"not known: {budget.unknown}"
        )
        return FitVerdict(Fits.UNKNOWN, None, None, tok_s, reason, writes_text, reported_tok_s)
    remarks = "; ".join(_remarks(recipe, facts))
    return FitVerdict(Fits.YES, requests, context, tok_s, remarks, writes_text, reported_tok_s)


def _remarks(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    speculative = recipe.serve.speculative
    if facts.architecture is not None and not facts.architecture.keeps_cache:
        yield "it keeps no cache"
    if speculative is not None and speculative.model and facts.drafter is None:
        yield "its drafter is not counted"


def verdict_words(verdict: FitVerdict, *, is_bound: bool) -> str:
    """Return how many requests and how fast; `is_bound` for a speed that no measurement backs."""
    words = []
    if verdict.requests is not None and verdict.fits is Fits.YES:
        context = f"{verdict.context_tokens:,} tokens"
        words.append(f"{verdict.requests:.1f} requests of {context} at once")
    if verdict.reported_tok_s is not None:
        words.append(f"{verdict.reported_tok_s:g} tok/s reported")
    if verdict.tok_s is not None:
        least, most = (verdict.tok_s * (1 + sign * MISS_SHARE) for sign in (-1, 1))
        about = f"at most {verdict.tok_s:.0f}" if is_bound else f"about {least:.0f} to {most:.0f}"
        words.append(f"{about} tok/s for one")
    elif verdict.fits is not Fits.NO and verdict.writes_text:
        words.append("its speed is not known")
    if verdict.reason:
        words.append(verdict.reason)
    return ", ".join(words)
