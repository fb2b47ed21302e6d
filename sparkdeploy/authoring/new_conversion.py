"""What a recipe does to a checkpoint that another model cannot have, and how it is switched off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.plan.missing import unfit_for
from sparkdeploy.plan.observe import conversion_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.recipe.schema import Recipe
    from sparkdeploy.settings import Settings

UNTREATED = Conversion()
FP8_OFF = '{mode: "off", source: null, from: source}'
"""Whole, for a mapping is laid over the one of the recipe that is extended."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One setting of a recipe that a model cannot have."""

    setting: str
    """By its path in the recipe."""
    reason: str
    off: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What switches it off, as YAML: by section and key."""


def misfits(recipe: Recipe, config: Mapping[str, Any], settings: Settings) -> Iterator[Misfit]:
    """Yield what `plan` would refuse of a recipe's conversion for a model of this config.json."""
    wanted = conversion_of(recipe, settings)
    for setting, alone, off in _parts(recipe, wanted):
        reasons = unfit_for(config, alone)
        if reasons:
            yield Misfit(setting, "; ".join(reasons), off)


def _parts(
    recipe: Recipe, wanted: Conversion
) -> Iterator[tuple[str, Conversion, Mapping[str, Mapping[str, str]]]]:
    """Yield each part of a conversion by itself, and what switches it off."""
    if wanted.fp8_mode != "off":
        alone = replace(UNTREATED, fp8_mode=wanted.fp8_mode)
        yield "checkpoint.fp8_dense", alone, {"checkpoint": {"fp8_dense": FP8_OFF}}
    if wanted.shared_experts != "bf16":
        alone = replace(UNTREATED, shared_experts=wanted.shared_experts)
        yield "checkpoint.shared_experts", alone, {"checkpoint": {"shared_experts": "bf16"}}
    if wanted.lm_head != "bf16":
        alone = replace(UNTREATED, lm_head=wanted.lm_head)
        yield "checkpoint.lm_head", alone, {"checkpoint": {"lm_head": "bf16"}}
    if wanted.draft_rows:
        alone = replace(UNTREATED, draft_rows=wanted.draft_rows)
        yield "checkpoint.draft_lm_head", alone, {"checkpoint": {"draft_lm_head": "null"}}
    if wanted.mtp_weights != "bf16":
        alone = replace(UNTREATED, mtp_weights=wanted.mtp_weights)
        yield "checkpoint.mtp_weights", alone, {"checkpoint": {"mtp_weights": "bf16"}}
    if wanted.mtp == "required":
        alone = replace(UNTREATED, mtp=wanted.mtp)
        yield "checkpoint.mtp", alone, {"checkpoint": {"mtp": '"off"'}, **_undrafted(recipe)}


def _undrafted(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Return what ends drafting by MTP, which needs the weights that are not there."""
    drafting = {"serve": recipe.serve.speculative, "cluster": recipe.cluster.speculative}
    return {
        section: {"speculative": "null"}
        for section, item in drafting.items()
        if item is not None and item != "off" and item.is_mtp
    }
