"""Recipes of others that somebody damaged, or made to do harm: a recipe, or exit 3."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy import yaml_text
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.foreign.report import recipe_text
from sparkdeploy.recipe.load import load_recipe
from tests.examples import examples
from tests.unit.recipe.foreign.samples import CASES, SHELF, V1, V2, WITH_WORDS

SAMPLES = (V1, V2, WITH_WORDS)
SPLINTERS = (*CASES["splinters"], "x" * 999)
HARM = "touch /tmp/sparkdeploy-was-here"


def damaged(text: str, seed: int) -> str:
    """Return the text with some of its lines or characters replaced, doubled or left out."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 6)):
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        kind = chance.randrange(6)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[chance.randrange(len(lines))])
        elif kind == 2:
            lines[at] = " " * chance.randrange(5) + lines[at].strip()
        elif kind == 3:
            key, colon, _ = lines[at].partition(":")
            lines[at] = f"{key}{colon} {chance.choice(SPLINTERS)}"
        else:
            place = chance.randrange(len(lines[at]) + 1)
            cut = place + chance.randrange(3)
            lines[at] = lines[at][:place] + chance.choice(SPLINTERS) + lines[at][cut:]
        text = "\n".join(lines)
    return text


@given(st.sampled_from(SAMPLES), st.integers(0, 2**32))
@settings(max_examples=examples(600), deadline=None)
def test_a_damaged_recipe_is_a_recipe_or_a_mistake(
    tmp_path_factory: pytest.TempPathFactory, sample: str, seed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(damaged(sample, seed).encode("utf-8", "surrogatepass"))
    try:
        resolved = load_recipe(SHELF, str(path), ["allow_unsafe=true"])
    except RecipeError:
        return
    translation = resolved.translation
    if translation is not None:
        written = yaml_text.load(recipe_text(translation), "what was written")
        content = translation.document.content
        assert written == {key: value for key, value in content.items() if key != "allow_unsafe"}


@pytest.mark.parametrize(("sample", "harmless", "hostile"), CASES["hostile"])
def test_a_hostile_recipe_gets_nothing_without_consent(
    tmp_path: Path, sample: str, harmless: str, hostile: str
) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text({"V1": V1, "V2": V2}[sample].replace(harmless, hostile.replace("HARM", HARM)))
    # The samples are asked about by themselves: to be refused is not enough.
    with pytest.raises(RecipeError) as refused:
        load_recipe(SHELF, str(path))
    try:
        agreed = load_recipe(SHELF, str(path), ["allow_unsafe=true"])
    except RecipeError:
        return
    told = repr((agreed.recipe, agreed.engine))
    taken = [it for it in (HARM, "evil", "hf_secret", "LD_PRELOAD", "/tmp/x.") if it in told]
    assert all(it in (refused.value.detail or "") for it in taken)
