"""A recipe's drafts in words: who reported what, other texts, and whether a third one pays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.estimate.acceptance import acceptance_of
from sparkdeploy.estimate.decode import decode_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.estimate.acceptance import Acceptance
    from sparkdeploy.estimate.decode import DecodeStep
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.estimate.speed import Speed, SpeedEstimate
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

FEWER, MORE = 2, 3
"""Drafted tokens that are held against each other."""


def drafting_lines(recipe: Recipe, acceptance: Mapping[str, Acceptance]) -> Iterator[str]:
    """Yield the rates that the tokens a step come from: who reported them, what is assumed."""
    speculative = recipe.serve.speculative
    known = acceptance_of(speculative, acceptance) if speculative is not None else None
    if speculative is None or known is None:
        return
    name = "mtp" if speculative.is_mtp else str(speculative.model)
    told = known.positions[: min(known.reported, speculative.tokens)]
    others = known.positions[known.reported : speculative.tokens]
    if told:
        yield f"  drafts accepted by position, {name}: {_rates(told)} ({known.source})"
    else:
        yield f"  drafts of {name}: {known.source}"
    if others:
        also = "then " if told else "by position "
        yield f"  {also}{_rates(others)}: assumed, {known.assumption}"
    if recipe.checkpoint.mtp_weights != "bf16":
        yield (
            "  the rates are of a 16-bit draft layer; with one of INT4 and FP8 nobody has measured "
            "them here"
        )
    if recipe.checkpoint.draft_lm_head is not None:
        yield "  and of drafts from all tokens; what a draft head leaves out is not taken off"


def _rates(positions: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:.0%}" for rate in positions)


def text_lines(
    resolved: Resolved, facts: ModelFacts, acceptance: Mapping[str, Acceptance], speed: Speed
) -> Iterator[str]:
    """Yield the speed for each text whose tokens a step were reported, with as many drafts."""
    speculative = resolved.recipe.serve.speculative
    known = acceptance_of(speculative, acceptance) if speculative is not None else None
    step = decode_step(resolved, facts, acceptance)
    if speculative is None or known is None or step is None or not known.tokens_by_text:
        return
    if speculative.tokens != len(known.positions):
        drafts = len(known.positions)
        yield f"  by text, tokens a step were reported of {drafts} drafts alone"
        return
    for text, tokens in known.tokens_by_text.items():
        tok_s = tokens / speed.duration_s(step)
        yield f"  {text}: {tokens:g} tokens a step as reported, {tok_s:.1f} tok/s by these bytes"


def third_draft_lines(
    resolved: Resolved,
    facts: ModelFacts,
    acceptance: Mapping[str, Acceptance],
    speed: Speed,
    made: SpeedEstimate | None,
) -> Iterator[str]:
    """Yield from which acceptance of the third position on MTP pays with three drafts, not two.

    The third draft pays when tokens grow as the step does: from `tokens of two x (step of three /
    step of two - 1)` on. `made` has the recipe's published speed or its parent's, if there is one.
    """
    steps = [_drafted(resolved, facts, acceptance, drafted) for drafted in (FEWER, MORE)]
    fewer, more = steps
    if fewer is None or more is None:
        return
    measure = "the one factor" if speed.fitted_to is not None else "the bytes alone"
    least = [f"{_least(fewer, more, speed):.0%} by {measure}"]
    anchor = _published(made) if made is not None and speed.fitted_to is not None else None
    if made is not None and made.step is not None and anchor is not None:
        whose, tok_s = anchor
        published_s = made.step.tokens_per_request / tok_s
        by_published = _least(fewer, more, speed, speed.duration_s(made.step) - published_s)
        least.append(f"{by_published:.0%} by {whose} published step")
    assumed = more.tokens_per_request - fewer.tokens_per_request
    yield (
        f"  three drafts pay against two from this acceptance of the third position on: "
        f"{', '.join(least)}; {assumed:.0%} is assumed, not measured"
    )


def _published(made: SpeedEstimate) -> tuple[str, float] | None:
    """Return whose published speed is a recipe's, and tokens a second."""
    if made.published_tok_s is not None:
        return "its", made.published_tok_s
    if made.from_published is not None:
        return f"{made.from_published.parent}'s", made.from_published.tok_s
    return None


def _least(fewer: DecodeStep, more: DecodeStep, speed: Speed, saved_s: float = 0.0) -> float:
    """`saved_s` is what both steps are shorter than the factor makes them."""
    durations = [speed.duration_s(step) - saved_s for step in (fewer, more)]
    return fewer.tokens_per_request * (durations[1] / durations[0] - 1)


def _drafted(
    resolved: Resolved, facts: ModelFacts, acceptance: Mapping[str, Acceptance], drafted: int
) -> DecodeStep | None:
    """Return the step with so many drafts; None for what does not draft two or three by MTP."""
    recipe = resolved.recipe
    speculative = recipe.serve.speculative
    if speculative is None or not speculative.is_mtp or speculative.tokens not in (FEWER, MORE):
        return None
    drafting = speculative.model_copy(update={"tokens": drafted})
    serve = recipe.serve.model_copy(update={"speculative": drafting})
    changed = replace(resolved, recipe=recipe.model_copy(update={"serve": serve}))
    return decode_step(changed, facts, acceptance)
