"""What made a run is read from the container: the recipe as it was deployed, not as it is today."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from sparkdeploy import labels
from sparkdeploy.bench.endpoint import recipe_origin
from sparkdeploy.bench.record import ClientOrigin, RecipeOrigin, RunOrigin
from sparkdeploy.bench.run import floor_of
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.recipe.report import values_to_show
from sparkdeploy.settings import load_settings
from tests.fakes.containers import container
from tests.unit.conftest import REPOSITORY

RECIPES = sorted(path.stem for path in (REPOSITORY / "recipes").glob("*.yaml"))


def told(recipe: str, written: str | None) -> RecipeOrigin:
    """What a container says of its recipe, with this on its label of values."""
    fact = container("sparkdeploy-main")
    values = {} if written is None else {labels.RECIPE_VALUES: written}
    fact = replace(fact, labels={**fact.labels, labels.RECIPE: recipe, **values})
    return recipe_origin(fact)


def written(recipe: str, *assignments: str) -> str:
    """What `up RECIPE --set ...` writes on the container."""
    resolved = resolve(Request(recipe, assignments), load_settings())
    return json.dumps(values_to_show(resolved.recipe))


def test_a_deployment_made_with_set_keeps_its_values_and_its_floor() -> None:
    text = written("v2", "expect.end_to_end_tok_s=40", "serve.max_model_len=4096")
    found = told("v2", text)
    assert cast("dict[str, Any]", found.values["serve"])["max_model_len"] == 4096
    assert found.fingerprint != told("v2", written("v2")).fingerprint
    origin = RunOrigin("http://127.0.0.1:8000", "qwen", ClientOrigin("0", "3"), recipe=found)
    assert floor_of(origin, None)[0] == 40


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_written_of_any_recipe_is_read_again(recipe: str) -> None:
    text = written(recipe)
    found = told(recipe, text)
    assert found.values == json.loads(text)


def test_a_variable_is_told_by_its_name_alone() -> None:
    text = written("v2", "serve.env.MY_AUTH=planted", "serve.env.PLAIN=planted")
    found = told("v2", text)
    assert "planted" not in text + repr(found)
    assert cast("dict[str, Any]", found.values["serve"])["env"] == {
        "MY_AUTH": "(left out)",
        "PLAIN": "(left out)",
    }
    origin = json.loads(written("v2"))
    older = {**origin, "serve": {**origin["serve"], "env": {"MY_AUTH": "planted"}}}
    assert "planted" not in repr(told("v2", json.dumps(older)))
