"""The image stages of a resolved recipe: its engine's, its mods', and what tops them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.image.mods import read_mod
from sparkdeploy.image.stages import Additions, stages_of
from sparkdeploy.recipe.release import is_tag
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from sparkdeploy.image.lock import Architecture
    from sparkdeploy.image.mods import ModFiles
    from sparkdeploy.image.stages import BaseSource, Stage, Top
    from sparkdeploy.recipe.load import Resolved


def stages_for(
    resolved: Resolved, *, base_source: BaseSource, architecture: Architecture
) -> tuple[Stage, ...]:
    """Return the stages, lowest first; a mod whose folder is not here has none.

    Raises BuildError for engines and mods that cannot be built.
    """
    first, *above = stages_of(
        resolved.engine,
        base_source=base_source,
        architecture=architecture,
        resources=resources(),
        additions=Additions(mods_of(resolved), top_of(resolved)),
    )
    if is_tag(resolved.image) and not first.unsettled:
        first = replace(first, settled_tag=resolved.image or "")
    return (first, *above)


def mods_of(resolved: Resolved) -> list[ModFiles]:
    return [read_mod(mod) for mod in resolved.mods if not mod.is_missing]


def top_of(resolved: Resolved) -> Top:
    """Leave the vLLM of an image that others made as it is, unless the recipe needs more of it.

    Our own engines have one image for every recipe.
    """
    is_theirs = resolved.engine.kind == "image"
    return "guard" if is_theirs and not resolved.recipe.needs_plugin else "plugin"
