"""What another state of a source brings: what needs consent, and git's own summary of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.authoring.source import git
from sparkdeploy.authoring.source.files import RECIPE_SUFFIXES
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.load import look_into
from sparkdeploy.recipe.sources.shelf import SNAPSHOT
from sparkdeploy.terminal.safe_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.recipe.load import Library


def differences(old: Path, new: Path, shelf: Library) -> Iterator[str]:
    """Yield what needs consent now, what needs it no more, and which files change how much."""
    # Folders of mods are found with links followed.
    before, after = (Path(os.path.realpath(folder)) for folder in (old, new))
    had, has = set(_consents(before, shelf)), set(_consents(after, shelf))
    yield from (f"+ consent: {it}" for it in sorted(has - had))
    yield from (f"- consent: {it}" for it in sorted(had - has))
    yield from git.diff_stat(before, after, without=SNAPSHOT)


def _consents(folder: Path, shelf: Library) -> Iterator[str]:
    """Yield what each recipe of a folder asks for, with all that it inherits."""
    for path in sorted(folder.rglob("*")):
        if not path.name.endswith(RECIPE_SUFFIXES) or not path.is_file():
            continue
        try:
            loaded = look_into(shelf, str(path))
        except RecipeError:
            continue
        for asked in loaded.consents:
            keys = ".".join(key for key in asked.path if isinstance(key, str))
            text = f"{path}: {keys}: {asked.message}"
            # A state that is looked at lies elsewhere than the one that was taken.
            yield visible_line(text.replace(f"{folder}/", "").replace(str(folder), "."))
