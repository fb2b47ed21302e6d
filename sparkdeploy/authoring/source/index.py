"""The index of a source: what each of its recipes is, read once when it is taken."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.authoring.source.files import RECIPE_SUFFIXES
from sparkdeploy.errors import NoRecipeError, RecipeError
from sparkdeploy.recipe.load import look_into
from sparkdeploy.recipe.sources.shelf import MAX_COUNT, RecipeRow, stem
from sparkdeploy.recipe.words import shortest_ends, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.recipe.load import Library, Loaded
    from sparkdeploy.recipe.schema import Recipe

MAX_RECIPES = 5_000


def rows_of(folder: Path, files: Sequence[str], shelf: Library) -> Iterator[RecipeRow]:
    """Yield a row for each recipe; RecipeError for more of them than a source may have."""
    recipes: dict[str, Loaded | RecipeError] = {}
    for file in sorted(files):
        if not file.endswith(RECIPE_SUFFIXES):
            continue
        # Workflows, settings and lists of other tools end in .yaml as well.
        with contextlib.suppress(NoRecipeError):
            recipes[file] = _looked_into(shelf, folder / file)
        if len(recipes) > MAX_RECIPES:
            raise RecipeError(f"the source holds more than {MAX_RECIPES} recipes")
    names = shortest_ends([stem(file) for file in recipes])
    for (file, found), name in zip(recipes.items(), names, strict=True):
        yield _row(name, file, found)


def _looked_into(shelf: Library, path: Path) -> Loaded | RecipeError:
    try:
        return look_into(shelf, str(path))
    except NoRecipeError:
        raise
    except RecipeError as error:
        return error


def _row(name: str, file: str, found: Loaded | RecipeError) -> RecipeRow:
    if isinstance(found, RecipeError):
        return _refused(name, file, found.message)
    if found.recipe is None:
        first = next(iter(found.lines(found.mistakes)), "it cannot be read")
        return _refused(name, file, _relative(first))
    recipe, limits = found.recipe, found.recipe.cluster
    mistakes = found.lines(found.mistakes)
    return RecipeRow(
        name=name,
        file=file,
        title=one_line(recipe.title),
        model=one_line(recipe.model.source),
        engine=one_line(recipe.engine),
        image=one_line(recipe.image or ""),
        drafts=_drafts(recipe),
        min_nodes=min(limits.least_nodes, MAX_COUNT),
        max_nodes=min(limits.max_nodes, MAX_COUNT) if limits.max_nodes is not None else None,
        consents=len(found.consents),
        refusal=_relative(mistakes[0]) if mistakes else "",
    )


def one_line(text: str) -> str:
    """Return a text of a stranger for an index: on one line, short, without control signs."""
    return shown(" ".join(text.split()))


def _refused(name: str, file: str, why: str) -> RecipeRow:
    return RecipeRow(name, file, "", "", "", "", "", 1, None, 0, _relative(why))


def _relative(line: str) -> str:
    """Return a line of a report without the folder that its file lies in."""
    file, colon, rest = line.partition(": ")
    return shown(f"{Path(file).name}{colon}{rest}" if colon and "/" in file else line)


def _drafts(recipe: Recipe) -> str:
    drafting = recipe.serve.speculative
    if drafting is None:
        return ""
    return one_line(f"{drafting.method or 'draft'} {drafting.tokens}")
