"""Prefix caching beside drafts, on an engine that cannot have both."""

from __future__ import annotations

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.plan.report import plan_lines
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.load import Library, load_recipe
from tests.fakes.plans import observed, plan
from tests.unit.plain import plain_lines

CPU = ("engine=cpu-0.32", "serve.attention_backend=null")
OFF = "--no-enable-prefix-caching"


def argv_of(made: Plan) -> tuple[str, ...]:
    (planned,) = made.nodes
    assert planned.spec is not None
    return planned.spec.command


def test_a_recipe_that_drafts_is_started_without_it_on_a_cpu(shipped: Library) -> None:
    made = plan(shipped, observed(), "v2", *CPU)
    assert OFF in argv_of(made)
    said = [line for line in plain_lines(plan_lines(made)) if "without prefix caching" in line]
    assert said == ["  without prefix caching: vLLM for CPUs has no prefix caching beside drafts"]


def test_who_insists_on_it_is_told_before_anything_starts(shipped: Library) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe(shipped, "v2", [*CPU, "serve.enable_prefix_caching=true"])
    assert "engine cpu-0.32: vLLM for CPUs has no prefix caching" in (refused.value.detail or "")
    assert load_recipe(shipped, "v2", ["serve.enable_prefix_caching=true"]).recipe.name == "v2"
