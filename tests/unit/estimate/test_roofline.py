"""Speed: bytes against the reference's own arithmetic, estimates against published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checkpoint.family.kinds import WeightKind
from sparkdeploy.errors import UsageError
from sparkdeploy.estimate.acceptance import read_acceptance
from sparkdeploy.estimate.anchored import anchored
from sparkdeploy.estimate.attention import read_attention
from sparkdeploy.estimate.decode import (
    DecodeStep,
    StepPart,
    decode_step,
    distinct_experts,
)
from sparkdeploy.estimate.drafting_report import drafting_lines
from sparkdeploy.estimate.hardware import hardware_named, hardware_seen, read_hardware
from sparkdeploy.estimate.model_facts import read_shipped_facts
from sparkdeploy.estimate.speed import (
    MeasuredSpeed,
    SpeedEstimate,
    estimate,
    fit_speed,
)
from sparkdeploy.estimate.speed_report import (
    estimate_lines,
    speed_lines,
)
from sparkdeploy.node.facts import GpuFact
from sparkdeploy.recipe.load import Library, load_recipe
from tests.unit.conftest import REPOSITORY
from tests.unit.plain import plain_lines

FACTS_FOLDER = REPOSITORY / "recipes" / "facts"
MODELS = read_shipped_facts(FACTS_FOLDER / "models.yaml")
BIG = MODELS["Intel/Qwen3.5-122B-A10B-int4-AutoRound"]
HARDWARE = read_hardware(FACTS_FOLDER / "hardware.yaml")
ACCEPTANCE = read_acceptance(FACTS_FOLDER / "speculation.yaml")
ATTENTION = read_attention(FACTS_FOLDER / "attention.yaml", HARDWARE)
SHIPPED = Library((REPOSITORY / "recipes",))
LOADED = {name: load_recipe(SHIPPED, name) for name in SHIPPED.recipe_files()}
RECIPES = {
    name: resolved
    for name, resolved in LOADED.items()
    if "Qwen3.5-122B" in resolved.recipe.model.known_as or name == "35b-v2"
}
"""Those of the models that the pictures of the docs are about."""
SPEED = fit_speed(HARDWARE["spark"], RECIPES, MODELS, ACCEPTANCE, ATTENTION)


def step(recipe: str, requests: int = 1, context_tokens: int = 0) -> DecodeStep:
    made = decode_step(
        RECIPES[recipe], BIG, ACCEPTANCE, requests=requests, context_tokens=context_tokens
    )
    assert made is not None
    return made


def made_for(recipe: str) -> SpeedEstimate:
    return estimate(RECIPES[recipe], MODELS, ACCEPTANCE, SPEED)


@pytest.mark.parametrize(("recipe", "gigabytes"), [("baseline", 6.83), ("hybrid", 6.38)])
def test_a_step_without_drafts_moves_the_bytes_of_the_reference(
    recipe: str, gigabytes: float
) -> None:
    """What the field derived from the weights: 6.83 and 6.38 GB a token."""
    assert step(recipe).total_bytes / 1e9 == pytest.approx(gigabytes, abs=0.02)


def test_a_step_with_drafts_moves_what_the_reference_leaves_out_as_well() -> None:
    """The same derivation has 11.46 GB for v2; it leaves out that each verified row stores its
    state, and that the first draft pass runs over all three rows."""
    states = 2 * 36 * 4_317_184
    draft_rows = 15.25 / 256 * BIG.weight_bytes[WeightKind.MTP_EXPERTS]
    expected = 11.46e9 + states + draft_rows
    assert step("v2").total_bytes == pytest.approx(expected, rel=0.01)


def test_a_draft_layer_of_int4_and_fp8_moves_a_third() -> None:
    shrunk = load_recipe(SHIPPED, "v2", ("checkpoint.mtp_weights=int4-fp8",))
    made = decode_step(shrunk, BIG, ACCEPTANCE, context_tokens=0)
    assert made is not None
    before, after = step("v2").parts, made.parts
    assert before[StepPart.DRAFT_LAYER] / 1e9 == pytest.approx(1.02, abs=0.005)
    assert after[StepPart.DRAFT_LAYER] / 1e9 == pytest.approx(0.37, abs=0.005)
    others = before.keys() - {StepPart.DRAFT_LAYER}
    assert all(after[part] == before[part] for part in others)
    said = "".join(drafting_lines(shrunk.recipe, ACCEPTANCE))
    assert "nobody has measured" in said
    assert "nobody has measured" not in "".join(drafting_lines(RECIPES["v2"].recipe, ACCEPTANCE))


def test_the_efficiency_is_fitted_to_the_baseline_and_to_nothing_else() -> None:
    assert SPEED.fitted_to == "baseline = 28.3 tok/s"
    assert made_for("baseline").tok_s == pytest.approx(28.3)
    without_others = {"baseline": RECIPES["baseline"]}
    alone = fit_speed(HARDWARE["spark"], without_others, MODELS, ACCEPTANCE, ATTENTION)
    assert alone.efficiency == SPEED.efficiency


def test_records_of_such_a_machine_take_the_place_of_the_published_figure() -> None:
    """Of three the median counts; recipes that nobody knows count for nothing."""
    half = [
        MeasuredSpeed("baseline", 28.3 / 2, "a"),
        MeasuredSpeed("baseline", 28.3 / 2, "b"),
        MeasuredSpeed("baseline", 200.0, "c"),
        MeasuredSpeed("nobody's", 1.0, "d"),
    ]
    fitted = fit_speed(HARDWARE["spark"], RECIPES, MODELS, ACCEPTANCE, ATTENTION, half)
    # What attention takes is not part of the factor.
    assert fitted.efficiency == pytest.approx(SPEED.efficiency / 2, rel=0.01)
    assert fitted.fitted_to is not None
    assert "records of such a machine" in fitted.fitted_to


@pytest.mark.parametrize(
    "recipe", ["baseline", "hybrid", "mtp-1", "v2", "v2-tq", "no-hybrid", "35b-v2"]
)
def test_an_estimate_is_within_fifteen_percent_of_the_published_figure(recipe: str) -> None:
    miss = made_for(recipe).miss
    assert miss is not None
    assert abs(miss) < 0.15


def test_a_drafter_of_unknown_size_gets_no_estimate() -> None:
    strange = load_recipe(SHIPPED, "dflash", ("serve.speculative.model=somebody/drafter",))
    made = estimate(strange, MODELS, ACCEPTANCE, SPEED)
    assert made.step is None
    lines = plain_lines(estimate_lines([made], SPEED))
    assert "no estimate" in lines[-1]


def test_without_a_measurement_the_speed_is_an_upper_bound() -> None:
    speed = fit_speed(HARDWARE["h200"], RECIPES, MODELS, ACCEPTANCE, ATTENTION)
    assert (speed.efficiency, speed.fitted_to) == (1.0, None)
    assert "upper bounds" in "\n".join(speed_lines(speed))


def test_a_narrower_cache_shows_at_long_context_and_not_at_short() -> None:
    def bytes_at(recipe: str, context_tokens: int) -> float:
        return step(recipe, context_tokens=context_tokens).total_bytes

    assert bytes_at("v2-kv8", 1024) == pytest.approx(bytes_at("v2", 1024), rel=0.01)
    saved = bytes_at("v2", 262_144) - bytes_at("v2-kv8", 262_144)
    assert saved == pytest.approx(262_144 * 14 * 1024, rel=0.01)


def test_a_machine_at_hand_is_known_by_its_gpu_and_else_measured() -> None:
    def seen(gpu: str | None, gpu_memory_bytes: int | None) -> tuple[str, int, float]:
        fact = GpuFact(gpu, memory_bytes=gpu_memory_bytes) if gpu is not None else None
        found = hardware_seen(fact, HARDWARE, memory_bytes=7, copy_bytes_s=11.0)
        return found.name, found.memory_bytes, found.bandwidth_bytes_s

    assert seen("NVIDIA GB10", None) == ("spark", 7, 273e9)
    assert seen("NVIDIA H200", 5) == ("h200", 5, 4800e9)
    assert seen(None, None) == ("here", 7, 11.0)


def test_unknown_hardware_is_refused_with_the_known_names() -> None:
    with pytest.raises(UsageError) as caught:
        hardware_named("b300", HARDWARE)
    assert "spark" in str(caught.value.hint)


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 10_000))
def test_distinct_experts_grow_with_rows_up_to_all(experts: int, chosen: int, rows: int) -> None:
    chosen = min(chosen, experts)
    few = distinct_experts(experts, chosen, rows)
    assert distinct_experts(experts, chosen, 1) == pytest.approx(chosen)
    assert chosen * 0.999 <= few <= min(experts, chosen * rows) * 1.001
    assert distinct_experts(experts, chosen, rows + 1) >= few


@given(
    st.sampled_from(["baseline", "mtp-1", "v2", "v2-tq"]),
    st.integers(1, 32),
    st.integers(0, 262_144),
)
def test_a_step_grows_with_requests_and_context(
    recipe: str, requests: int, context_tokens: int
) -> None:
    made = step(recipe, requests, context_tokens)
    assert step(recipe, requests + 1, context_tokens).total_bytes > made.total_bytes
    assert step(recipe, requests, context_tokens + 1).total_bytes > made.total_bytes
    assert all(size > 0 for size in made.parts.values())


def test_a_parent_s_published_step_less_the_saved_bytes_is_a_second_estimate() -> None:
    v2 = made_for("v2")
    assert v2.step is not None
    parts = {**v2.step.parts, StepPart.DRAFT_HEAD: v2.step.parts[StepPart.DRAFT_HEAD] - 1e9}
    child = replace(v2, name="v2-hub", step=replace(v2.step, parts=parts), published_tok_s=None)

    parent, found = anchored([v2, child], RECIPES, SPEED)

    bandwidth_bytes_s = SPEED.efficiency * SPEED.hardware.bandwidth_bytes_s
    assert parent.from_published is None
    assert found.from_published is not None
    assert found.from_published.parent == "v2"
    assert found.from_published.tok_s == pytest.approx(2.75 / (2.75 / 51 - 1e9 / bandwidth_bytes_s))
    assert any("56.4 by v2" in line for line in plain_lines(estimate_lines([parent, found], SPEED)))


def test_a_recipe_that_extends_its_own_name_has_parents_all_the_same() -> None:
    own = replace(RECIPES["v2"], recipe=RECIPES["v2"].recipe.model_copy(update={"extends": "v2"}))

    made = anchored([replace(made_for("v2"), published_tok_s=None)], {"v2": own}, SPEED)

    assert made[0].from_published is None
