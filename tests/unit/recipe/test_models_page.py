"""docs/models.md is made from the shipped recipes; this fails when it is stale.

Write it anew: python -m pytest tests/unit/recipe/test_models_page.py --update-golden
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.report import model_name
from tests.rehearsed import (
    BY_A_SMALL_ONE,
    BY_THEIR_OWN_CONFIGURATION,
    NOT_REHEARSED,
    OF_THE_122B,
)
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from sparkdeploy.recipe.schema import Recipe

PAGE = REPOSITORY / "docs" / "models.md"
HEAD = """\
# The recipes we ship

Made from the recipes themselves (tests/unit/recipe/test_models_page.py writes it).
`sparkdeploy list` says which fit this machine, `sparkdeploy plan RECIPE --hardware spark` for how
many requests and about how fast, `sparkdeploy show RECIPE` every value.

**No figure here is ours: nothing of this ran on a Spark.** Settings come from where each recipe
says; a figure is told with who reported it. What needs a fork or a preview is served by the image
that its line names. It asks for no consent, because the recipe is ours; that image is somebody
else's code all the same, and `up` pins it to its digest:
[engines.md](engines.md#images-of-others).

A model that has no recipe yet: `sparkdeploy new NAME --model ORG/NAME` writes a first one from the
model's config.json and generation_config.json: its family, the parsers known for it, a context that
fits, the least release, how it samples. Every line that is a guess has a comment that says so.
`--from RECIPE` starts from the settings of another one.
"""


def recipes() -> list[Recipe]:
    shelf = Library((REPOSITORY / "recipes",))
    found = [load_recipe(shelf, name).recipe for name in shelf.recipe_files()]
    return sorted(found, key=lambda it: (model_name(it.model.known_as).lower(), it.name))


def page() -> str:
    return "\n".join([HEAD, *_sections(recipes())]) + "\n"


def _sections(found: list[Recipe]) -> Iterator[str]:
    for model, group in groupby(found, lambda it: model_name(it.model.known_as)):
        yield f"\n## {model}\n"
        for recipe in group:
            yield f"- **`{recipe.name}`**: {recipe.title}."
            yield from (f"  - {name}: {said}" for name, said in _rows(recipe) if said)


def _rows(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    serve, expect = recipe.serve, recipe.expect
    least = f", vLLM {recipe.least_vllm} or newer" if recipe.least_vllm else ""
    yield "engine", f"{recipe.image or recipe.engine}{least}"
    yield "weights", recipe.model.known_as
    yield "machines", "" if (recipe.cluster.min_nodes or 1) == 1 else recipe.cluster.min_nodes
    parsers = (serve.reasoning_parser, serve.tool_call_parser)
    yield "parsers", ", ".join(dict.fromkeys(filter(None, parsers)))
    yield "chat template", serve.chat_template and serve.chat_template.rpartition("/")[2]
    yield "needs", recipe.preview
    yield "settings from", recipe.source
    if expect is not None:
        figure = f"{expect.end_to_end_tok_s:g} tok/s on a {expect.hardware}"
        yield "reported", f"{figure}, {expect.engine} ({expect.source})"
    yield "rehearsed", _rehearsed(recipe.name)


def _rehearsed(name: str) -> str:
    if name in NOT_REHEARSED:
        return f"no: {NOT_REHEARSED[name]}"
    return "by a small configuration of its family" if name in BY_A_SMALL_ONE else "yes"


def test_the_page_is_what_the_recipes_say(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(page())
    stale = "docs/models.md is stale: python -m pytest tests/unit/recipe/test_models_page.py"
    assert PAGE.read_text() == page(), f"{stale} --update-golden"


def test_each_is_rehearsed_or_has_its_reason() -> None:
    rehearsed = {*OF_THE_122B, *BY_THEIR_OWN_CONFIGURATION, *BY_A_SMALL_ONE}
    assert rehearsed.isdisjoint(NOT_REHEARSED)
    assert rehearsed | set(NOT_REHEARSED) == {recipe.name for recipe in recipes()}


def test_no_figure_stands_without_its_source() -> None:
    for recipe in recipes():
        if recipe.expect is not None:
            assert recipe.expect.source, recipe.name
            assert recipe.expect.engine, recipe.name
