"""The two terms of a decode step against every figure that others published of a DGX Spark."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sparkdeploy import yaml_text
from sparkdeploy.estimate.hardware import MeasuredSpeed
from sparkdeploy.estimate.report import factor_lines, speed_lines
from sparkdeploy.estimate.speed import (
    MISS_SHARE,
    DecodeStep,
    Speed,
    StepPart,
    decode_step,
    fit_speed,
    launches_line,
)
from sparkdeploy.recipe.load import load_recipe
from tests.unit.conftest import SHIPPED
from tests.unit.estimate.shipped import ACCEPTANCE, FACTS_FOLDER, HARDWARE, MODELS, SPARK

PUBLISHED = yaml_text.load_file(FACTS_FOLDER / "published.yaml")
FITTED = {item["recipe"]: tuple(item["tok_s"]) for item in PUBLISHED["fitted"]}
RECIPES = {name: load_recipe(SHIPPED, name) for name in (*FITTED, "v3-fast", "qwen3.6-35b-fast")}
SPEED = fit_speed(SPARK, RECIPES, MODELS, ACCEPTANCE)


def step_of(name: str) -> DecodeStep:
    recipe = RECIPES[name].recipe
    speculative = recipe.serve.speculative
    drafter = MODELS.get(speculative.model or "") if speculative is not None else None
    facts = replace(MODELS[recipe.model.known_as], drafter=drafter)
    made = decode_step(RECIPES[name], facts, ACCEPTANCE)
    assert made is not None
    return made


STEPS = {name: step_of(name) for name in FITTED}


def misses(layer_us: float, share: float) -> float:
    """The sum of squared logarithms of estimate by figure; of a range its middle counts."""
    speed = Speed(SPARK, layer_us / 1e6, share)
    return sum(
        math.log(speed.tokens_per_second(STEPS[name]) / math.sqrt(least * most)) ** 2
        for name, (least, most) in FITTED.items()
    )


def test_the_two_numbers_fit_all_published_figures_best() -> None:
    assert SPARK.fit is not None
    assert SPARK.fit.figures == len(FITTED)
    choices = [(layer, share / 100) for layer in range(0, 405, 5) for share in range(60, 101)]
    best = min(choices, key=lambda it: misses(*it))
    assert best == (SPARK.fit.layer_us, SPARK.fit.bandwidth_share)


@pytest.mark.parametrize("recipe", FITTED)
def test_an_estimate_is_within_its_spread_of_what_was_published(recipe: str) -> None:
    least, most = FITTED[recipe]
    estimate = SPEED.tokens_per_second(STEPS[recipe])
    assert estimate * (1 - MISS_SHARE) <= least <= most <= estimate * (1 + MISS_SHARE)


def test_dense_nvfp4_is_as_slow_as_it_was_published() -> None:
    known = PUBLISHED["dense_nvfp4"]
    step = DecodeStep(
        1, {StepPart.FEED_FORWARD: known["step_bytes"]}, 1.0, known["layers"], is_dense_nvfp4=True
    )
    least, most = known["tok_s"]
    assert least <= SPEED.tokens_per_second(step) <= most


def test_a_fork_s_mxfp4_of_attention_and_head_is_counted() -> None:
    before, after = STEPS["gpt-oss-120b"].parts, STEPS["gpt-oss-120b-mxfp4"].parts
    for part in (StepPart.ATTENTION, StepPart.HEAD):
        assert after[part] == pytest.approx(before[part] * 4.25 / 16)
    assert after[StepPart.EXPERTS] == before[StepPart.EXPERTS]


def test_the_fast_35b_is_beyond_150_by_bytes_and_layers() -> None:
    step = step_of("qwen3.6-35b-fast")
    assert step.total_bytes < 3.75e9
    assert SPEED.tokens_per_second(step) > 150


def test_layers_count_a_draft_layer_once_a_draft_and_a_drafter_once() -> None:
    assert STEPS["baseline"].layers == 48
    assert STEPS["v2"].layers == 48 + 2
    assert STEPS["dflash"].layers == 48 + 6


def test_records_of_such_a_machine_scale_what_was_published() -> None:
    """Of three the median counts; recipes that nobody knows count for nothing."""
    own = SPEED.tokens_per_second(STEPS["baseline"])
    records = [MeasuredSpeed("baseline", own * share) for share in (0.5, 0.5, 7.0)]
    scaled = fit_speed(
        SPARK, RECIPES, MODELS, ACCEPTANCE, [*records, MeasuredSpeed("nobody's", 1.0)]
    )
    assert scaled.origin == "3 records of such a machine (baseline)"
    for step in STEPS.values():
        assert scaled.duration_s(step) == pytest.approx(2 * SPEED.duration_s(step))


def test_without_a_measurement_the_speed_is_an_upper_bound() -> None:
    speed = fit_speed(HARDWARE["h200"], RECIPES, MODELS, ACCEPTANCE)
    assert (speed.layer_s, speed.bandwidth_share, speed.origin) == (0.0, 1.0, None)
    assert "upper bounds" in "\n".join(factor_lines(speed))


@pytest.mark.parametrize(("recipe", "is_warned"), [("v3-fast", True), ("v2", False)])
def test_a_saving_below_what_its_launches_may_add_is_said(recipe: str, is_warned: bool) -> None:
    resolved = RECIPES[recipe]
    facts = MODELS[resolved.recipe.model.known_as]
    line = launches_line(resolved.recipe, facts, SPEED)
    assert (line is not None) == is_warned
    shown = "\n".join(map(str, speed_lines(resolved, facts, ACCEPTANCE, SPEED)))
    assert ("their kernel may take" in shown) == is_warned
