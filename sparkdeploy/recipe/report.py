"""Recipes in words: the table of all, and one with the origin of every value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.foreign.report import short_lines
from sparkdeploy.recipe.load import load_engine, load_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkdeploy.recipe.document import KeyPath
    from sparkdeploy.recipe.load import Library, Resolved
    from sparkdeploy.recipe.schema import Recipe

LEFT_OUT = "(left out)"


def recipe_rows(library: Library) -> list[dict[str, Any]]:
    def row(name: str) -> dict[str, Any]:
        recipe = load_recipe(library, name).recipe
        expect = recipe.expect
        return {
            "name": name,
            "title": recipe.title,
            "engine": recipe.engine,
            "reported_tok_s": expect.end_to_end_tok_s if expect else None,
            "source": expect.source if expect else None,
        }

    return [_row_or_error(row, name) for name in sorted(library.recipe_files())]


def engine_rows(library: Library) -> list[dict[str, Any]]:
    def row(name: str) -> dict[str, Any]:
        return load_engine(library, name).model_dump(include={"name", "title", "kind", "vllm"})

    return [_row_or_error(row, name) for name in sorted(library.engine_files())]


def _row_or_error(row: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
    try:
        return row(name)
    except RecipeError as error:
        return {"name": name, "error": error.message}


def list_lines(recipes: list[dict[str, Any]], engines: list[dict[str, Any]]) -> Iterator[str]:
    yield "recipes (tok/s are others' figures, see README):"
    for row in recipes:
        figure = row.get("reported_tok_s")
        yield _list_line(row, f"{figure:g}" if figure else "-")
    yield "engines:"
    for row in engines:
        yield _list_line(row, row.get("vllm", ""))


def _list_line(row: dict[str, Any], figure: str) -> str:
    if "error" in row:
        return f"  {row['name']:<12} broken: {row['error']}"
    return f"  {row['name']:<12} {figure:>6}  {row['title']}"


def origin_lines(resolved: Resolved) -> Iterator[str]:
    """Yield `path: value  # where it was written` for every value of a resolved recipe."""
    content = resolved.recipe.model_dump(by_alias=True)
    for path, value in _leaves(content, ()):
        text = f"{'.'.join(map(str, path))}: {json.dumps(value)}"
        yield f"{text:<64} # {resolved.origins.get(path, 'default')}"
    if resolved.translation is not None:
        yield from short_lines(resolved.translation)


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
