"""Which folders and files of the host a recipe from elsewhere may have mounted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.unsafe import is_foreign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.recipe.document import Origin
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


def refuse_foreign_mounts(
    resolved: Resolved, settings: Settings, own_folders: tuple[Path, ...]
) -> None:
    """Raise RecipeError for a mount from outside the folders of models and of the recipe itself.

    What was typed, and what stands in the user's own recipes folder, is the user's wish. Links are
    followed first.
    """
    if resolved.recipe.allow_unsafe:
        return
    for name, value, origin in _wanted(resolved, own_folders):
        beside = Path(origin.file).parent
        meant = (beside / Path(value).expanduser()).resolve()
        allowed = (beside, settings.hub_cache, settings.data_dir)
        if not any(meant.is_relative_to(folder.resolve()) for folder in allowed):
            raise RecipeError(
                f"{origin}: {name}: {meant} lies outside the folders of models",
                hint=f"type it yourself (--set {name}={meant}), or insist with --allow-unsafe",
            )


def _wanted(resolved: Resolved, own_folders: tuple[Path, ...]) -> Iterator[tuple[str, str, Origin]]:
    """Yield the host paths that a file from elsewhere names."""
    recipe = resolved.recipe
    named = {
        ("model", "path"): recipe.model.path,
        ("serve", "chat_template"): recipe.serve.chat_template,
    }
    for path, value in named.items():
        if value is not None and is_foreign(path, resolved.origins, own_folders):
            yield ".".join(path), value, resolved.origins[path]
