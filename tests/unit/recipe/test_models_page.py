"""Tables of docs/models.md are made from the shipped recipes; this fails when they are stale.

Write them anew: python -m pytest tests/unit/recipe/test_models_page.py --update-golden
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby

import pytest

from sparkdeploy.authoring.fits import fitting_rows
from sparkdeploy.authoring.outlook import ground_for
from sparkdeploy.recipe.load import load_all, load_recipe
from sparkdeploy.recipe.report import model_name
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import load_settings
from tests.rehearsed import BY_A_SMALL_ONE, BY_THEIR_OWN_CONFIGURATION, NOT_REHEARSED, OF_THE_122B
from tests.unit.conftest import REPOSITORY, SHIPPED
from tests.unit.docs_blocks import block, with_block

PAGE = REPOSITORY / "docs" / "models.md"
COLUMNS = 100


def recipes() -> list[Recipe]:
    found = [load_recipe(SHIPPED, name).recipe for name in SHIPPED.recipe_files()]
    return sorted(found, key=lambda it: (model_name(it.model.known_as).lower(), it.name))


def rows() -> list[dict[str, object]]:
    ground = ground_for("spark", load_settings())
    return fitting_rows(ground, load_all(ground.recipe_library))


def fits_block() -> str:
    verdicts = {str(row["recipe"]): row for row in rows()}
    lines = [
        "| recipe | Sparks | requests at once | tok/s by plan | reported |",
        "|---|---|---|---|---|",
    ]
    for it in recipes():
        verdict, expect = verdicts[it.name], it.expect
        reported = (
            f"{expect.tok_s:g}{'' if expect.end_to_end_tok_s else ' decode'}" if expect else "-"
        )
        cells = (f"`{it.name}`", str(_nodes(it)), *_fit(verdict), reported)
        lines.append(f"|{'|'.join(cells)}|")
    return "\n".join([*lines, ""])


def in_k(tokens: int) -> str:
    return f"{tokens // 2**20}M" if tokens % 2**20 == 0 else f"{tokens // 1024}K"


def _nodes(recipe: Recipe) -> int:
    return recipe.cluster.min_nodes or 1


def _fit(verdict: Mapping[str, object]) -> tuple[str, str]:
    """Return how many requests of which length are kept at once, and how fast one is."""
    words = str(verdict["words"])
    kept = re.search(r"([\d.]+) requests of ([\d,]+) tokens", words)
    speed = re.search(r"(?:about|at most) (?:\d+ to )?\d+(?= tok/s for one)", words)
    held = f"{kept[1]} of {in_k(int(kept[2].replace(',', '')))}" if kept else "not known"
    return held, speed[0].removeprefix("about ") if speed else "not known"


def recipes_block() -> str:
    lines: list[str] = []
    for model, group in groupby(recipes(), lambda it: model_name(it.model.known_as)):
        lines += ["", f"**{model}**", ""]
        weights = ""
        for it in group:
            new = it.model.known_as if it.model.known_as != weights else ""
            weights = it.model.known_as
            lines += _entry(f"`{it.name}`: {' '.join(_sentences(it, new))}")
    return "\n".join([*lines[1:], ""])


def _entry(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent="- ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _sentences(recipe: Recipe, weights: str) -> Iterator[str]:
    """Yield what it is, its weights where they are not those of the recipe above, and its needs."""
    yield f"{recipe.title}."
    if weights:
        yield f"{weights}."
    if recipe.engine != "cuda-0.25" and recipe.image is None:
        yield f"{recipe.engine}."
    if recipe.preview:
        yield f"Needs {recipe.preview}."


def sources_block() -> str:
    """Return the figures of others, those of one machine, vLLM and kind together."""
    groups: dict[str, list[str]] = {}
    for it in recipes():
        if (expect := it.expect) is not None:
            kind = f"{expect.hardware}, {expect.engine}, {expect.figure}"
            groups.setdefault(kind, []).append(f"`{it.name}` {expect.tok_s:g} ({expect.source})")
    lines = [line for kind in groups for line in _entry(f"{kind}: {'; '.join(groups[kind])}.")]
    return "\n".join([*lines, ""])


BLOCKS = {"fits": fits_block, "recipes": recipes_block, "figures": sources_block}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_is_what_the_recipes_say(name: str, pytestconfig: pytest.Config) -> None:
    made = BLOCKS[name]()
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(with_block(PAGE.read_text(), name, made))
    stale = "docs/models.md is stale: python -m pytest tests/unit/recipe/test_models_page.py"
    assert block(PAGE.read_text(), name) == made, f"{stale} --update-golden"


def test_each_is_rehearsed_or_has_its_reason() -> None:
    rehearsed = {*OF_THE_122B, *BY_THEIR_OWN_CONFIGURATION, *BY_A_SMALL_ONE}
    assert rehearsed.isdisjoint(NOT_REHEARSED)
    assert rehearsed | set(NOT_REHEARSED) == {recipe.name for recipe in recipes()}


def test_of_each_the_planner_knows_the_weights() -> None:
    for row in rows():
        assert "words" in row, row
        assert row["fits"] != "does not fit", row


def test_no_figure_stands_without_its_source() -> None:
    for recipe in recipes():
        if recipe.expect is not None:
            assert recipe.expect.source, recipe.name
            assert recipe.expect.engine, recipe.name


def test_the_table_of_the_readme_has_the_figures_of_the_recipes() -> None:
    reported = {it.name: it.expect.tok_s for it in recipes() if it.expect is not None}
    rows = re.findall(r"^\| (`.*?) \|.*\| (.*?) \|$", (REPOSITORY / "README.md").read_text(), re.M)
    named = {name for names, _ in rows for name in re.findall(r"`([^`]+)`", names)}
    assert {"baseline", "v2", "v3-fast", "dflash"} <= named
    for names, told in rows:
        figures = {float(it) for it in re.findall(r"[\d.]+", re.sub(r"`.*?`", "", told))}
        wanted = {reported[it] for it in re.findall(r"`([^`]+)`", names) if it in reported}
        assert figures == wanted, names
