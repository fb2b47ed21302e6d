"""Drafts of v3, v3-fast and DFlash: bytes a step, tokens a step, and when a third draft pays."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.estimate.acceptance import even_positions, read_acceptance
from sparkdeploy.estimate.anchored import anchored
from sparkdeploy.estimate.attention import read_attention
from sparkdeploy.estimate.decode import DecodeStep, StepPart, decode_step
from sparkdeploy.estimate.drafting_report import drafting_lines, text_lines, third_draft_lines
from sparkdeploy.estimate.hardware import read_hardware
from sparkdeploy.estimate.model_facts import read_shipped_facts
from sparkdeploy.estimate.share import facts_of_step
from sparkdeploy.estimate.speed import SpeedEstimate, estimate, fit_speed, in_order
from sparkdeploy.recipe.load import Library, Resolved, load_recipe
from tests.unit.conftest import REPOSITORY

FACTS_FOLDER = REPOSITORY / "recipes" / "facts"
MODELS = read_shipped_facts(FACTS_FOLDER / "models.yaml")
BIG = MODELS["Intel/Qwen3.5-122B-A10B-int4-AutoRound"]
DRAFTER = MODELS["z-lab/Qwen3.5-122B-A10B-DFlash"]
HARDWARE = read_hardware(FACTS_FOLDER / "hardware.yaml")
ACCEPTANCE = read_acceptance(FACTS_FOLDER / "speculation.yaml")
SHIPPED = Library((REPOSITORY / "recipes",))
NAMES = ("baseline", "hybrid", "mtp-1", "mtp-2", "v2", "no-hybrid", "v3", "v3-fast")
RECIPES = {name: load_recipe(SHIPPED, name) for name in (*NAMES, "dflash", "dflash-prose")}
TABLE = read_attention(FACTS_FOLDER / "attention.yaml", HARDWARE)
SPEED = fit_speed(HARDWARE["spark"], RECIPES, MODELS, ACCEPTANCE, TABLE)
ELEMENTS_OF_HEAD = 248_320 * 3072


def made_for(resolved: Resolved) -> SpeedEstimate:
    """Return its estimate among all recipes, so that a parent's published figure counts."""
    recipes = {**RECIPES, resolved.recipe.name: resolved}
    ordered = in_order(recipes)
    estimates = [estimate(item, MODELS, ACCEPTANCE, SPEED) for item in ordered]
    found = anchored(estimates, {item.recipe.name: item for item in ordered}, SPEED)
    return next(item for item in found if item.name == resolved.recipe.name)


def step_of(name: str, *settings: str) -> DecodeStep:
    made = made_for(load_recipe(SHIPPED, name, settings)).step
    assert made is not None
    return made


@pytest.mark.parametrize(("recipe", "most_gigabytes"), [("v3", 10.4), ("v3-fast", 9.5)])
def test_v3_moves_no_more_than_it_was_made_for(recipe: str, most_gigabytes: float) -> None:
    moved = step_of(recipe).total_bytes / 1e9
    assert most_gigabytes - 0.2 < moved <= most_gigabytes


@pytest.mark.parametrize(
    ("recipe", "by_factor", "by_v2"), [("v3", 51.7, 61.4), ("v3-fast", 56.6, 68.4)]
)
def test_v3_has_two_speeds_and_neither_is_called_measured(
    recipe: str, by_factor: float, by_v2: float
) -> None:
    made = made_for(RECIPES[recipe])
    assert made.published_tok_s is None
    assert made.tok_s == pytest.approx(by_factor, abs=0.05)
    assert made.from_published is not None
    assert made.from_published.parent == "v2"
    assert made.from_published.tok_s == pytest.approx(by_v2, abs=0.05)


def test_v3_shrinks_what_drafts_alone() -> None:
    before, after = step_of("v2").parts, step_of("v3").parts
    changed = {part for part in before if after[part] != before[part]}
    assert changed == {StepPart.DRAFT_LAYER, StepPart.DRAFT_HEAD}
    assert after[StepPart.DRAFT_HEAD] == 2 * 65_536 * (3072 + 4)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_draft_head_s_rows_are_dealt_over_ranks(ranks: int) -> None:
    read = facts_of_step(BIG, tensor_parallel=ranks)
    made = decode_step(RECIPES["v3"], read, ACCEPTANCE)
    assert made is not None
    rows = -(-65_536 // ranks)
    assert made.parts[StepPart.DRAFT_HEAD] == 2 * rows * (3072 + 4)


def test_v3_fast_has_half_a_byte_a_weight_and_two_a_group() -> None:
    before, after = step_of("v3").parts, step_of("v3-fast").parts
    assert after[StepPart.HEAD] == ELEMENTS_OF_HEAD // 2 + 2 * (ELEMENTS_OF_HEAD // 128)
    shared = 48 * 3 * 1024 * 3072
    assert after[StepPart.SHARED] == shared // 2 + 2 * (shared // 128)
    changed = {part for part in before if after[part] != before[part]}
    assert changed == {StepPart.HEAD, StepPart.SHARED, StepPart.STATE}


def test_a_state_in_bf16_is_half_but_for_its_window() -> None:
    wide = step_of("v3").parts[StepPart.STATE]
    narrow = step_of("v3", "serve.mamba_ssm_cache_dtype=bfloat16").parts[StepPart.STATE]
    # 36 layers, read once and written for three rows; 64 heads of 128 x 128.
    assert wide - narrow == 36 * 4 * 64 * 128 * 128 * 2
    window = 36 * 4 * 5 * 12_288 * 2
    assert narrow == window + 36 * 4 * 64 * 128 * 128 * 2


def test_a_dflash_drafter_is_read_once_and_so_is_the_head() -> None:
    made = step_of("dflash")
    assert made.parts[StepPart.DRAFT_LAYER] == sum(DRAFTER.weight_bytes.values())
    assert made.parts[StepPart.DRAFT_HEAD] == made.parts[StepPart.HEAD]
    assert made.tokens_per_request == pytest.approx(6.4)
    # Six layers of 8 heads of 128 go over 1,024 tokens once, the model's 12 over theirs.
    of_the_drafter, of_the_model = 6 * 8 * 128 * 4, 12 * 2 * 256 * 4
    assert made.cache_bytes == 1024 * (of_the_drafter + of_the_model)


def test_a_step_of_fewer_rows_is_not_taken_from_a_parents_published_one() -> None:
    """dflash reads fewer experts than counted, so its four drafts do not save what is counted."""
    found = made_for(RECIPES["dflash-prose"]).from_published
    assert found is not None
    assert found.parent == "v2"


def test_what_a_drafter_brings_is_told_by_text_and_with_its_source() -> None:
    resolved, facts = RECIPES["dflash"], replace(BIG, drafter=DRAFTER)
    said = list(drafting_lines(resolved.recipe, ACCEPTANCE))
    assert "Entrpi's report" in said[0]
    assert "assumed, " in said[1]
    by_text = list(text_lines(resolved, facts, ACCEPTANCE, SPEED))
    code = 5.4 / SPEED.duration_s(step_of("dflash"))
    assert f"  code: 5.4 tokens a step as reported, {code:.1f} tok/s by these bytes" in by_text
    assert list(text_lines(RECIPES["v3"], facts, ACCEPTANCE, SPEED)) == []
    fewer = list(text_lines(RECIPES["dflash-prose"], facts, ACCEPTANCE, SPEED))
    assert fewer == ["  by text, tokens a step were reported of 12 drafts alone"]


def test_of_another_number_of_drafts_only_the_assumption_is_known() -> None:
    made = step_of("dflash-prose").tokens_per_request
    known = ACCEPTANCE["z-lab/Qwen3.5-122B-A10B-DFlash"]
    assert made == pytest.approx(1 + sum(known.positions[:4]))
    beyond = load_recipe(SHIPPED, "dflash", ("serve.speculative.tokens=15",))
    assert made_for(beyond).step is None


def least_percent(name: str, *settings: str) -> list[int]:
    resolved = load_recipe(SHIPPED, name, settings)
    lines = third_draft_lines(resolved, BIG, ACCEPTANCE, SPEED, made_for(resolved))
    return [int(found) for line in lines for found in re.findall(r"(\d+)%", line)]


def test_three_drafts_pay_where_tokens_grow_as_the_step_does() -> None:
    two, three = step_of("v3"), step_of("v3", "serve.speculative.tokens=3")
    longer = SPEED.duration_s(three) / SPEED.duration_s(two)
    by_factor, by_v2, assumed = least_percent("v3")
    assert by_factor == round(100 * 2.75 * (longer - 1))
    # A step of v2 was shorter than the factor makes it, so a third draft weighs more.
    assert by_v2 > by_factor
    assert assumed == 67
    assert three.tokens_per_request == pytest.approx(2.75 + 0.67)


@given(st.integers(1, 15), st.floats(0, 1))
def test_even_positions_come_to_what_was_reported(drafted: int, share: float) -> None:
    tokens = 1 + share * drafted
    positions = even_positions(drafted, tokens)
    assert len(positions) == drafted
    assert 1 + sum(positions) == pytest.approx(tokens, abs=1e-6)
    assert all(0 <= rate <= 1 for rate in positions)
    assert list(positions) == sorted(positions, reverse=True)
