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

UNCONVERTED = Conversion()
PARTS = {
    # Whole, for a mapping is laid over the one of the recipe that is extended.
    "fp8_mode": ("fp8_dense", '{mode: "off", source: null, from: source}'),
    "shared_experts": ("shared_experts", "bf16"),
    "lm_head": ("lm_head", "bf16"),
    "draft_rows": ("draft_lm_head", "null"),
    "mtp_weights": ("mtp_weights", "bf16"),
    "mtp": ("mtp", '"off"'),
}
"""Each part of a conversion: its setting under `checkpoint`, and what switches it off, as YAML."""


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
    for part, (setting, off) in PARTS.items():
        value = getattr(wanted, part)
        if value == getattr(UNCONVERTED, part):
            continue
        reasons = unfit_for(config, replace(UNCONVERTED, **{part: value}))
        if reasons:
            drafts = _undrafted(recipe) if part == "mtp" else {}
            switched = {"checkpoint": {setting: off}, **drafts}
            yield Misfit(f"checkpoint.{setting}", "; ".join(reasons), switched)


def _undrafted(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Return what ends drafting by MTP, which needs the weights that are not there."""
    drafting = {"serve": recipe.serve.speculative, "cluster": recipe.cluster.speculative}
    return {
        section: {"speculative": "null"}
        for section, item in drafting.items()
        if item is not None and item != "off" and item.is_mtp
    }
