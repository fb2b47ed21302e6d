"""Whether the recipes that a search found fit a machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.authoring.fits import fitting_row
from sparkdeploy.authoring.outlook import ground_for
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.verdict import Fits
from sparkdeploy.recipe.load import load_recipe
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.authoring.outlook import Ground
    from sparkdeploy.authoring.source.search import Hit

WORDS = {Fits.YES.value: "fits", Fits.NO.value: "no", Fits.UNKNOWN.value: "unknown"}


def with_fits(hits: Iterable[Hit], hardware: str) -> Iterator[Hit]:
    """Yield those that fit, and those of which nobody knows, which say so.

    No hub is asked: a model is known by its files here, or by the shipped facts.
    """
    ground = ground_for(hardware, load_settings())
    for hit in hits:
        fits = _fits(hit, ground)
        if fits != Fits.NO.value:
            yield replace(hit, fits=WORDS[fits])


def _fits(hit: Hit, ground: Ground) -> str:
    if hit.row.refusal:
        return Fits.NO.value
    resolved = ground.recipes.get(hit.called) if hit.path is None else None
    try:
        # Nothing is run: what needs consent is looked at like the rest.
        wanted = hit.called if hit.path is None else str(hit.path)
        resolved = resolved or load_recipe(ground.shelf, wanted, ("allow_unsafe=true",))
    except RecipeError:
        return Fits.UNKNOWN.value
    return str(fitting_row(ground, resolved)["fits"])
