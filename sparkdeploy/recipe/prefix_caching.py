"""Prefix caching beside drafts, which vLLM for CPUs cannot do: left open, it is turned off.

Beside drafts a model with linear attention keeps its states at block boundaries, and what moves
them there are Triton kernels alone (`precopy_mamba_align_fused_kernel` and two others of
v1/worker/mamba_utils.py in 0.32.0; 0.25.1 has them too). Without Triton the first request ends the
engine. Nobody tried models of other kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.schema import Recipe

REASON: Final = "vLLM for CPUs has no prefix caching beside drafts"


def is_impossible(recipe: Recipe, engine: Engine) -> bool:
    return engine.runs_on == "cpu" and recipe.serve.speculative is not None


def falls_back(recipe: Recipe, engine: Engine) -> bool:
    """Return whether `without_impossible` turns it off, which the recipe leaves open."""
    return is_impossible(recipe, engine) and recipe.serve.enable_prefix_caching is None


def without_impossible(recipe: Recipe, engine: Engine) -> Recipe:
    """Return the recipe as its engine is started."""
    if not falls_back(recipe, engine):
        return recipe
    serve = recipe.serve.model_copy(update={"enable_prefix_caching": False})
    return recipe.model_copy(update={"serve": serve})
