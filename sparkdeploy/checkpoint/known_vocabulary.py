"""A recipe's draft vocabulary: where it is kept, and bringing it to the overlay."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.draft_vocabulary import read_vocabulary
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from sparkdeploy.checkpoint.draft_vocabulary import DraftVocabulary
    from sparkdeploy.recipe.schema import Model, Recipe
    from sparkdeploy.settings import Settings

HINT = "count it once over text of yours: sparkdeploy checkpoint draft-vocab RECIPE FILE..."


def vocabulary_file(model: Model, settings: Settings) -> Path:
    """Where the vocabulary of a model is kept: one for each repository or folder."""
    name = model.repo.replace("/", "--")
    if model.path is not None:
        digest = hashlib.sha256(str(Path(model.path).absolute()).encode()).hexdigest()[:12]
        name = f"{Path(model.path).name}-{digest}"
    return settings.data_dir / "m" / "draft" / f"{name}.json"


def known_vocabulary(recipe: Recipe, settings: Settings) -> DraftVocabulary | None:
    """Return what was counted for a recipe's draft head; None without one, or without a count."""
    if recipe.checkpoint.draft_lm_head is None:
        return None
    return read_vocabulary(vocabulary_file(recipe.model, settings))


def bring_vocabulary(recipe: Recipe, settings: Settings) -> DraftVocabulary | None:
    """Return the vocabulary for the overlay, None for a recipe without a draft head.

    Raises CheckpointError when it was never counted.
    """
    found = known_vocabulary(recipe, settings)
    if found is None and recipe.checkpoint.draft_lm_head is not None:
        raise CheckpointError(f"no draft vocabulary of {recipe.model.repo} is here", hint=HINT)
    return found
