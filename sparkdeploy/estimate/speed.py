"""Every recipe's estimated speed beside its published one, and why they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.estimate.roofline import Step, decode_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.estimate.hardware import Hardware
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.estimate.roofline import Acceptance
    from sparkdeploy.recipe.load import Resolved

KERNEL_SHARE = 0.84
"""Of the bandwidth, reported for the field's LM-head kernel (reference-system.md section 5.1)."""
CLOSE_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class Speed:
    """How a machine's bandwidth becomes time."""

    hardware: Hardware
    efficiency: float
    fitted_to: str | None
    """The recipe whose published speed gave the efficiency; None for an upper bound."""
    launch_s: float = 0.0
    """Time a step of that recipe leaves unexplained when kernels reach `KERNEL_SHARE`."""

    @property
    def bandwidth_bytes_s(self) -> float:
        """Return the bandwidth that is reached."""
        return self.efficiency * self.hardware.bandwidth_bytes_s


@dataclass(frozen=True, slots=True)
class Estimate:
    """One recipe's step and speed; tokens a second for one request."""

    name: str
    model: str
    step: Step | None
    tok_s: float | None
    apart_tok_s: float | None
    """The same with the launch cost counted once a step instead of as bandwidth."""
    published_tok_s: float | None
    source: str | None
    has_own_cache_format: bool

    @property
    def miss(self) -> float | None:
        """Return how far the estimate is off the published figure, as a share of that."""
        if self.tok_s is None or self.published_tok_s is None:
            return None
        return self.tok_s / self.published_tok_s - 1


def fit_speed(
    hardware: Hardware,
    recipes: Mapping[str, Resolved],
    facts: Mapping[str, ModelFacts],
    acceptance: Mapping[str, Acceptance],
) -> Speed:
    """Return the machine's speed; the efficiency comes from one published figure, or is 1."""
    fit = hardware.fit
    fitted = recipes.get(fit.recipe) if fit is not None else None
    known = facts.get(fitted.recipe.model.repo) if fitted is not None else None
    if fit is None or fitted is None or known is None:
        return Speed(hardware, 1.0, None)
    step = decode_step(fitted, known, acceptance)
    if step is None:
        return Speed(hardware, 1.0, None)
    efficiency = fit.end_to_end_tok_s / step.tokens_per_second(hardware.bandwidth_bytes_s)
    launch_s = max(
        0.0,
        step.tokens_per_request / fit.end_to_end_tok_s
        - step.duration_s(KERNEL_SHARE * hardware.bandwidth_bytes_s),
    )
    return Speed(hardware, efficiency, fit.recipe, launch_s)


def estimate(
    resolved: Resolved,
    facts: Mapping[str, ModelFacts],
    acceptance: Mapping[str, Acceptance],
    speed: Speed,
) -> Estimate:
    """Return one recipe's estimate; without a step when something it needs is not known."""
    recipe = resolved.recipe
    known = facts.get(recipe.model.repo)
    step = decode_step(resolved, known, acceptance) if known is not None else None
    expect = recipe.expect
    return Estimate(
        name=recipe.name,
        model=recipe.model.repo,
        step=step,
        tok_s=step.tokens_per_second(speed.bandwidth_bytes_s) if step is not None else None,
        apart_tok_s=_apart(step, speed) if step is not None else None,
        published_tok_s=expect.end_to_end_tok_s if expect is not None else None,
        source=expect.source if expect is not None else None,
        has_own_cache_format=recipe.serve.kv_cache_dtype.startswith("turboquant"),
    )


def _apart(step: Step, speed: Speed) -> float | None:
    if speed.fitted_to is None:
        return None
    kernels_s = step.duration_s(KERNEL_SHARE * speed.hardware.bandwidth_bytes_s)
    return step.tokens_per_request / (kernels_s + speed.launch_s)


def miss_reasons(made: Estimate) -> Iterator[str]:
    """Yield why an estimate is off; nothing is corrected by it."""
    if made.step is None:
        yield "no estimate: the size or the acceptance of its drafter is not known"
        return
    miss = made.miss
    if miss is None or abs(miss) <= CLOSE_SHARE:
        return
    if made.has_own_cache_format:
        yield (
            "published with the field's own cache format, whose decode kernel walks a sequence "
            "key by key: time that bytes do not show; at long context the cache counts, here not"
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


def next_recipes(name: str, recipes: Mapping[str, Resolved]) -> Sequence[str]:
    """Return the recipes that extend this one and serve the same model."""
    model = recipes[name].recipe.model.repo
    return [
        other
        for other, resolved in sorted(recipes.items())
        if resolved.recipe.extends == name and resolved.recipe.model.repo == model
    ]


def in_order(recipes: Mapping[str, Resolved]) -> Sequence[Resolved]:
    """Return recipes as they build on each other: parents first, then by name."""

    def depth(name: str | None) -> int:
        found = recipes.get(name) if name is not None else None
        return 0 if found is None else 1 + depth(found.recipe.extends)

    return [recipes[name] for name in sorted(recipes, key=lambda name: (depth(name), name))]
