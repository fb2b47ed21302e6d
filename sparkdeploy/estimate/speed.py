"""Speed: how long the bytes of a decode step take at a machine's bandwidth.

One number is fitted, to the published speed of one recipe: the share of the bandwidth that all but
attention reaches. What attention reads of a cache goes at the pace of `attention.py`. Every other
recipe's estimate follows from its bytes and its drafts' acceptance.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy.estimate.decode import decode_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.estimate.acceptance import Acceptance
    from sparkdeploy.estimate.anchored import FromPublished
    from sparkdeploy.estimate.attention import AttentionTable
    from sparkdeploy.estimate.decode import DecodeStep
    from sparkdeploy.estimate.hardware import Hardware
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

KERNEL_SHARE = 0.84
"""Of the bandwidth: what albond/DGX_Spark_Qwen3.5-122B-A10B-AR-INT4 reports for its LM head."""
CLOSE_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class Speed:
    """How a machine's bandwidth becomes time."""

    hardware: Hardware
    attention: AttentionTable
    efficiency: float
    fitted_to: str | None
    """What gave the efficiency, in words; None for an upper bound."""
    launch_s: float = 0.0
    """Time a step of that recipe leaves unexplained when kernels reach `KERNEL_SHARE`."""

    def duration_s(self, step: DecodeStep) -> float:
        return self._others_s(step, self.efficiency) + self.attention_s(step)

    def attention_s(self, step: DecodeStep) -> float:
        """Return what attention takes to go over the cache."""
        pace = self.attention.pace(step.kv_cache_dtype, self.hardware, step.query_rows)
        reading_s = step.cache_bytes / (pace.share * self.hardware.bandwidth_bytes_s)
        return reading_s + step.attention_passes * pace.fixed_s

    def tokens_per_second(self, step: DecodeStep) -> float:
        """Of all requests together."""
        return step.requests * step.tokens_per_request / self.duration_s(step)

    def launched_apart(self, step: DecodeStep) -> float | None:
        """Return tokens a second with the launch cost counted once a step, not as bandwidth."""
        if self.fitted_to is None:
            return None
        return step.tokens_per_request / (self._kernels_s(step) + self.launch_s)

    def fitted(self, step: DecodeStep, end_to_end_tok_s: float) -> Speed:
        """Return the same with the efficiency at which one request's step has this speed."""
        others_s = step.tokens_per_request / end_to_end_tok_s - self.attention_s(step)
        efficiency = self._others_s(step, 1.0) / others_s
        launch_s = step.tokens_per_request / end_to_end_tok_s - self._kernels_s(step)
        return replace(self, efficiency=efficiency, launch_s=max(0.0, launch_s))

    def _kernels_s(self, step: DecodeStep) -> float:
        return self._others_s(step, KERNEL_SHARE) + self.attention_s(step)

    def _others_s(self, step: DecodeStep, share: float) -> float:
        """What all but the cache takes at a share of the bandwidth."""
        others_bytes = step.total_bytes - step.cache_bytes
        return others_bytes / (share * self.hardware.bandwidth_bytes_s)


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
    from_published: FromPublished | None = None

    @property
    def miss(self) -> float | None:
        if self.tok_s is None or self.published_tok_s is None:
            return None
        return self.tok_s / self.published_tok_s - 1


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
    attention: AttentionTable,
    measured: Sequence[MeasuredSpeed] = (),
) -> Speed:
    """Return the machine's speed: records of it give the efficiency, else one published figure.

    Of several records the median counts. Without any the efficiency is 1.
    """
    bound, fit = Speed(hardware, attention, 1.0, None), hardware.fit
    if not measured and fit is not None:
        measured = (MeasuredSpeed(fit.recipe, fit.end_to_end_tok_s, ""),)
    fitted = []
    for item in measured:
        resolved = recipes.get(item.recipe)
        known = facts.get(resolved.recipe.model.known_as) if resolved is not None else None
        step = decode_step(resolved, known, acceptance) if resolved and known else None
        if step is not None:
            fitted.append(bound.fitted(step, item.end_to_end_tok_s))
    # A record that leaves no time for anything but attention says nothing of the rest.
    fitted = [it for it in fitted if it.efficiency > 0]
    if not fitted:
        return bound
    efficiency = statistics.median(it.efficiency for it in fitted)
    nearest = min(fitted, key=lambda it: abs(it.efficiency - efficiency))
    return replace(nearest, efficiency=efficiency, fitted_to=_origin(measured))


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
    known = _with_drafter(recipe, facts)
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


def _with_drafter(recipe: Recipe, facts: Mapping[str, ModelFacts]) -> ModelFacts | None:
    """Return what is known of a recipe's model, beside the drafter that this recipe names."""
    known, speculative = facts.get(recipe.model.known_as), recipe.serve.speculative
    drafter = speculative.drafter if speculative is not None else None
    if known is None or drafter is None:
        return known
    # Another recipe's drafter may stand beside the model.
    is_own = known.drafter is not None and known.drafter.repo == drafter.known_as
    return known if is_own else replace(known, drafter=facts.get(drafter.known_as))


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
