"""docs/models.md is made from the shipped recipes; this fails when it is stale.

Write it anew: python -m pytest tests/unit/recipe/test_models_page.py --update-golden
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sparkdeploy.authoring.fits import fitting_rows
from sparkdeploy.authoring.outlook import ground_for
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.report import model_name
from sparkdeploy.settings import load_settings
from tests.rehearsed import (
    BY_A_SMALL_ONE,
    BY_THEIR_OWN_CONFIGURATION,
    NOT_REHEARSED,
    OF_THE_122B,
)
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pytest

    from sparkdeploy.recipe.schema import Recipe

PAGE = REPOSITORY / "docs" / "models.md"
HEAD = """\
# The recipes we ship

Made from the recipes themselves (tests/unit/recipe/test_models_page.py writes it).
`sparkdeploy list` says which fit this machine, `sparkdeploy plan RECIPE --hardware spark` for how
many requests and about how fast, `sparkdeploy show RECIPE` every value. *Fits* is the planner's
word before any download ([capacity.md](capacity.md)): computed, and measured by nobody.

**No figure here is ours: nothing of this ran on a Spark.** Settings come from where each recipe
says, without its load format and its served name, and without `--trust-remote-code`, since vLLM has
classes of its own for these models. A figure is told with who reported it; *decode* leaves prefill
out, and is no floor for `bench --gate`.

What others report of one stream on one Spark, in tokens a second, by October 2026:

| model | vLLM | TensorFold |
|---|---|---|
| Qwen3.5-122B | 59.0 end to end, Entrpi, 2026-06 | - |
| Qwen3.6-35B | 120.6 code, 100.6 chat, TensorFold's docs | 160.5 code, 133.3 prose, 2026-10-02 |
| Qwen3.6-35B, 8K read | 94.8, NVIDIA, 2026-09-03 | - |
| gpt-oss-120b | 33 to 40, releases; 58.8 to 68.9, forks | - |
| Qwen3.8-Flash-Next | 61.5 code, MiaAI's fork, 2026-09-09 | 54.3 code, 49.3 chat, 2026-10-06 |
| Qwen3.8-Flash-Next, agents | 48.8, dime-online's fork | - |
| Nemotron 3.5 Lightning, 8K read | 95.4, NVIDIA, 2026-09-03 | - |

`qwen3.6-35b-fast` is to close the gap of the 35B: 3.70 GB and 22.3 ms a step by our count, 153.5
tok/s where drafts are accepted as reported (95 and 80 %, and an assumed 67 %; a dense 27B had 96,
80 and 64 %, noonghunna/qwen36-27b-single-3090#4). To TensorFold's 160.5 1 ms a step is missing. 8.2
of the 22.3 ms are launches, 190 us a layer: its kernels do more in one. It also reads shared
experts in 4 bits, ends a chain of drafts that grows unlikely, and drafts text that repeats by
copying.

Recipes with `cuda-0.33` need that release or a newer one. It passed on Hopper, and is unknown on
GB10 ([engines.md](engines.md#what-was-shown-of-each)).

A *fork* is a build of vLLM that somebody else made, with kernels or flags that no release has.
Where its author publishes an image, the recipe names it: it asks for no consent, because the recipe
is ours; that image is somebody else's code all the same, and `up` pins it to its digest
([engines.md](engines.md#images-of-others)). Where nobody publishes one, `needs` says how to get it.

A model that has no recipe yet: `sparkdeploy new NAME --model ORG/NAME` writes a first one from the
model's config.json and generation_config.json: its family, the parsers known for it, a context that
fits, the least release, how it samples. Every line that is a guess has a comment that says so.
`--from RECIPE` starts from the settings of another one; without `--model` it writes a recipe to
edit, which changes nothing yet and has the usual values as comments.
"""


def recipes() -> list[Recipe]:
    shelf = Library((REPOSITORY / "recipes",))
    found = [load_recipe(shelf, name).recipe for name in shelf.recipe_files()]
    return sorted(found, key=lambda it: (model_name(it.model.known_as).lower(), it.name))


def page() -> str:
    found = recipes()
    rows = fitting_rows(ground_for("spark", load_settings()))
    verdicts = {str(row["recipe"]): row for row in rows}
    return "\n".join([HEAD, *_table(found), *_sections(found, verdicts)]) + "\n"


def _table(found: list[Recipe]) -> Iterator[str]:
    """For how many machines, and what it takes; one's own choice begins here."""
    groups = (
        ("one Spark", [it for it in found if _nodes(it) == 1 and not it.preview]),
        ("two Sparks", [it for it in found if _nodes(it) == 2 and not it.preview]),
        ("one Spark, and a fork", [it for it in found if _nodes(it) == 1 and it.preview]),
        ("two Sparks, and a fork", [it for it in found if _nodes(it) == 2 and it.preview]),
    )
    yield "| for | recipes |"
    yield "|---|---|"
    yield from (
        f"| {what} | {', '.join(f'`{it.name}`' for it in group)} |" for what, group in groups
    )
    assert sum(len(group) for _, group in groups) == len(found)


def _nodes(recipe: Recipe) -> int:
    return recipe.cluster.min_nodes or 1


def _sections(found: list[Recipe], verdicts: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    for model, group in groupby(found, lambda it: model_name(it.model.known_as)):
        yield f"\n## {model}\n"
        for recipe in group:
            yield f"- **`{recipe.name}`**: {recipe.title}."
            rows = _rows(recipe, verdicts[recipe.name])
            yield from (f"  - {name}: {said}" for name, said in rows if said)


def _rows(recipe: Recipe, verdict: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    serve, expect = recipe.serve, recipe.expect
    least = f", vLLM {recipe.least_vllm} or newer" if recipe.least_vllm else ""
    yield "engine", f"{recipe.image or recipe.engine}{least}"
    yield "weights", recipe.model.known_as
    yield "drafter", serve.speculative and serve.speculative.model
    yield "machines", _nodes(recipe)
    yield "fits", _fit(verdict)
    parsers = (serve.reasoning_parser, serve.tool_call_parser)
    yield "parsers", ", ".join(dict.fromkeys(filter(None, parsers)))
    yield "chat template", serve.chat_template and serve.chat_template.rpartition("/")[2]
    yield "needs", recipe.preview
    yield "settings from", recipe.source
    if expect is not None:
        machines = expect.hardware if expect.hardware.startswith("two ") else f"a {expect.hardware}"
        figure = f"{expect.tok_s:g} tok/s {expect.figure} on {machines}"
        yield "reported", f"{figure}, {expect.engine} ({expect.source})"
    yield "rehearsed", _rehearsed(recipe.name)


def _fit(verdict: Mapping[str, object]) -> str:
    if "words" not in verdict:
        return f"not known: {verdict['reason']}"
    word = "yes" if verdict["fits"] == "fits" else "maybe"
    return f"{word}, {verdict['words']}"


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


def test_of_each_the_planner_knows_the_weights() -> None:
    for row in fitting_rows(ground_for("spark", load_settings())):
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
