"""Whether a recipe fits a machine, how many requests and about how fast."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from sparkdeploy.estimate.memory import Budget
from sparkdeploy.estimate.model import ModelFacts
from sparkdeploy.estimate.speed import MISS_SHARE
from sparkdeploy.recipe.answers import planned_answers
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.units import format_gib


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
    context, requests = (row.context_tokens, row.concurrency) if row else (None, None)
    writes_text = planned_answers(recipe.serve, facts.config).writes_text
    tok_s = tok_s if writes_text else None
    taken_bytes, claim = budget.taken_bytes, format_gib(budget.claim_bytes)
    taken = f"weights and reserves take {format_gib(taken_bytes)} of"
    if taken_bytes >= budget.claim_bytes:
        return FitVerdict(Fits.NO, None, context, None, f"{taken} the {claim} that vLLM may use")
    if row is not None and row.concurrency < 1:
        needs = f"one request of {row.context_tokens:,} tokens needs more than the"
        reason = f"{needs} {format_gib(budget.available_bytes)} left for its cache: lower "
        reason += "serve.max_model_len or compress it"
        return FitVerdict(Fits.NO, requests, context, None, reason)
    if budget.unknown:
        reason = f"{taken} {claim}, not known: {budget.unknown}"
        return FitVerdict(Fits.UNKNOWN, None, None, tok_s, reason, writes_text, reported_tok_s)
    remarks = "; ".join(_remarks(recipe, facts))
    return FitVerdict(Fits.YES, requests, context, tok_s, remarks, writes_text, reported_tok_s)


def _remarks(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    speculative = recipe.serve.speculative
    if facts.architecture is not None and not facts.architecture.keeps_cache:
        yield "it keeps no cache"
    if speculative is not None and speculative.model and facts.drafter is None:
        yield "its drafter is not counted"


REPORTED_ON = {"DGX Spark": 1, "two DGX Sparks": 2}
"""How many machines the words of `expect.hardware` mean."""


def without_others_report(changed: Recipe, plain: Recipe | None) -> Recipe:
    """Return a recipe without the figures that others reported of it before something was set.

    A port, names and consents have no part in a speed.
    """

    def measured(recipe: Recipe) -> Recipe:
        serve = recipe.serve.model_copy(update={"port": 0})
        model = recipe.model.model_copy(update={"served_name": None})
        free = {"allow_unsafe": False, "allow_known_bad": False}
        return recipe.model_copy(update={"serve": serve, "model": model, **free})

    if plain is not None and measured(plain) == measured(changed):
        return changed
    return changed.model_copy(update={"expect": None})


def verdict_words(verdict: FitVerdict, *, is_bound: bool) -> str:
    """Return how many requests and how fast; `is_bound` for a speed that no measurement backs."""
    words = []
    if verdict.requests is not None and verdict.fits is Fits.YES:
        words.append(
            f"{verdict.requests:.1f} requests of {verdict.context_tokens:,} tokens at once"
        )
    if verdict.reported_tok_s is not None:
        words.append(f"{verdict.reported_tok_s:g} tok/s reported")
    if verdict.tok_s is not None:
        least, most = (verdict.tok_s * (1 + sign * MISS_SHARE) for sign in (-1, 1))
        about = f"at most {verdict.tok_s:.0f}" if is_bound else f"about {least:.0f} to {most:.0f}"
        words.append(f"{about} tok/s for one")
    elif verdict.fits is not Fits.NO and verdict.writes_text:
        words.append("its speed is not known")
    return ", ".join([*words, verdict.reason] if verdict.reason else words)
