"""Recipes in words: the table of all, and one with the origin of every value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.load import load_engine, load_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.recipe.document import KeyPath
    from sparkdeploy.recipe.load import Library, Resolved
    from sparkdeploy.recipe.schema import Recipe

LEFT_OUT = "(left out)"


def recipe_rows(library: Library) -> list[dict[str, Any]]:
    """Return name, title, engine and the reported figure of every recipe; broken ones too."""
    rows: list[dict[str, Any]] = []
    for name in sorted(library.recipe_files()):
        try:
            recipe = load_recipe(library, name).recipe
        except RecipeError as error:
            rows.append({"name": name, "error": error.message})
            continue
        expect = recipe.expect
        rows.append(
            {
                "name": name,
                "title": recipe.title,
                "engine": recipe.engine,
                "reported_tok_s": expect.end_to_end_tok_s if expect else None,
                "source": expect.source if expect else None,
            }
        )
    return rows


def engine_rows(library: Library) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in sorted(library.engine_files()):
        try:
            engine = load_engine(library, name)
        except RecipeError as error:
            rows.append({"name": name, "error": error.message})
        else:
            rows.append(engine.model_dump(include={"name", "title", "kind", "vllm"}))
    return rows


def list_lines(recipes: list[dict[str, Any]], engines: list[dict[str, Any]]) -> Iterator[str]:
    yield "recipes (tok/s are others' figures, see README):"
    for row in recipes:
        if "error" in row:
            yield f"  {row['name']:<12} broken: {row['error']}"
            continue
        figure = f"{row['reported_tok_s']:g}" if row["reported_tok_s"] else "-"
        yield f"  {row['name']:<12} {figure:>6}  {row['title']}"
    yield "engines:"
    for row in engines:
        if "error" in row:
            yield f"  {row['name']:<12} broken: {row['error']}"
        else:
            yield f"  {row['name']:<12} {row['vllm']:>6}  {row['title']}"


def origin_lines(resolved: Resolved) -> Iterator[str]:
    """Yield `path: value  # where it was written` for every value of a resolved recipe."""
    content = resolved.recipe.model_dump(by_alias=True)
    for path, value in _leaves(content, ()):
        text = f"{'.'.join(map(str, path))}: {json.dumps(value)}"
        yield f"{text:<64} # {resolved.origins.get(path, 'default')}"


def values_to_show(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's values as JSON has them, for what others can read.

    Any variable of `serve.env` may be a secret, whatever it is called: their names stay alone.
    """
    values = recipe.model_dump(by_alias=True, mode="json")
    values["serve"]["env"] = dict.fromkeys(recipe.serve.env, LEFT_OUT)
    return values


def _leaves(value: Any, prefix: KeyPath) -> Iterator[tuple[KeyPath, Any]]:  # noqa: ANN401 - any
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*prefix, str(key)))
    else:
        yield prefix, value
