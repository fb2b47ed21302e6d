"""Where recipes are found, for a user of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.recipe.load import Library
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from sparkdeploy.settings import Settings


def library(settings: Settings) -> Library:
    """Return the folders of recipes, the user's before the shipped ones, and those of models."""
    return Library(
        (settings.config_dir / "recipes", resources() / "recipes"),
        (settings.hub_cache, settings.data_dir),
    )
