"""Where recipes are found, for a user of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.recipe.load import Library
from sparkdeploy.settings import RECIPES_VARIABLE, resources

if TYPE_CHECKING:
    from sparkdeploy.settings import Settings


def recipe_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the trusted folders: what --on sent here, the user's own, the shipped ones."""
    sent = os.environ.get(RECIPES_VARIABLE)
    own = (settings.config_dir / "recipes", resources() / "recipes")
    return (Path(sent), *own) if sent else own


def library(settings: Settings) -> Library:
    """Return the folders of recipes, the user's before the shipped ones, and those of models."""
    return Library(recipe_folders(settings), (settings.hub_cache, settings.data_dir))
