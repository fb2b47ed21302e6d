"""Speed: bytes against the reference's own arithmetic, estimates against published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.authoring import outlook
from sparkdeploy.errors import RecipeError, UsageError
from sparkdeploy.estimate.hardware import hardware_named, hardware_seen
from sparkdeploy.estimate.memory import converted_weights
from sparkdeploy.estimate.model import WeightKind, dense_share_of, facts_of_step
from sparkdeploy.estimate.report import (
    TOGETHER,
    conversion_lines,
    speed_lines,
    steps_without,
    treated_lines,
)
from sparkdeploy.estimate.speed import (
    DecodeStep,
    StepPart,
    acceptance_lines,
    decode_step,
    distinct_experts,
    fit_speed,
)
from sparkdeploy.node.facts import GpuFact
from sparkdeploy.recipe.load import Resolved, load_recipe
from tests.unit.conftest import SHIPPED
from tests.unit.estimate.shipped import ACCEPTANCE, BIG, HARDWARE, MODELS, SPARK

DRAFTER = MODELS["z-lab/Qwen3.5-122B-A10B-DFlash"]
NAMES = (
    *("baseline", "hybrid", "mtp-1", "v2", "v2-kv8", "v2-tq", "no-hybrid", "35b-v2"),
    *("v3", "v3-fast", "dflash", "dflash-prose"),
)
RECIPES = {name: load_recipe(SHIPPED, name) for name in NAMES}
SPEED = fit_speed(SPARK, RECIPES, MODELS, ACCEPTANCE)
ELEMENTS_OF_HEAD = 248_320 * 3072


def step(recipe: str, requests: int = 1, context_tokens: int = 0) -> DecodeStep:
    made = decode_step(
        RECIPES[recipe], BIG, ACCEPTANCE, requests=requests, context_tokens=context_tokens
    )
    assert made is not None
    return made


def step_of(name: str, *settings: str) -> DecodeStep:
    resolved = load_recipe(SHIPPED, name, settings)
    facts = replace(MODELS[resolved.recipe.model.known_as], drafter=DRAFTER)
    made = decode_step(resolved, facts, ACCEPTANCE)
    assert made is not None
    return made


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
    said = "".join(acceptance_lines(shrunk.recipe, ACCEPTANCE))
    assert "nobody has measured" in said
    assert "nobody has measured" not in "".join(acceptance_lines(RECIPES["v2"].recipe, ACCEPTANCE))


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


def test_the_best_of_some_copies_counts_and_each_byte_twice() -> None:
    looks_s = iter((0.0, 3.0, 3.0, 4.0, 4.0, 6.0))
    assert outlook.copy_bandwidth(lambda: next(looks_s)) == 2 * outlook.COPIED_BYTES


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
    assert made.tokens_per_request == pytest.approx(6.4, abs=0.001)
    # Six layers of 8 heads of 128 go over 1,024 tokens once, the model's 12 over theirs.
    of_the_drafter, of_the_model = 6 * 8 * 128 * 4, 12 * 2 * 256 * 4
    assert made.parts[StepPart.CACHE] == 1024 * (of_the_drafter + of_the_model)


def test_of_another_number_of_drafts_only_the_assumption_is_known() -> None:
    made = step_of("dflash-prose").tokens_per_request
    known = ACCEPTANCE["z-lab/Qwen3.5-122B-A10B-DFlash"]
    assert made == pytest.approx(1 + sum(known.positions[:4]))
    beyond = load_recipe(SHIPPED, "dflash", ("serve.speculative.tokens=15",))
    assert decode_step(beyond, replace(BIG, drafter=DRAFTER), ACCEPTANCE) is None
    assert decode_step(RECIPES["dflash"], BIG, ACCEPTANCE) is None


@pytest.mark.parametrize("drafted", [1, 2])
def test_verified_tokens_share_one_pass_and_each_draft_takes_its_own(drafted: int) -> None:
    """12 layers of the model go over the cache once a step, the draft layer once a draft."""
    settings = [f"serve.speculative={{method: mtp, tokens: {drafted}}}"]
    made = decode_step(
        load_recipe(SHIPPED, "v2-tq", settings), BIG, ACCEPTANCE, context_tokens=1000
    )
    assert made is not None
    assert made.parts[StepPart.CACHE] == (12 + drafted) * 1000 * 2 * 262


def test_the_report_has_the_drafts_source_and_longer_contexts() -> None:
    facts = replace(BIG, drafter=DRAFTER)
    lines = list(speed_lines(RECIPES["dflash"], facts, ACCEPTANCE, SPEED, longest_tokens=100_000))
    assert any("Entrpi's report" in line for line in lines)
    assert any("assumed by position" in line for line in lines)
    assert lines[-1].split()[0] == "100,000"
    unknown = list(speed_lines(RECIPES["dflash"], BIG, ACCEPTANCE, SPEED))
    assert "no estimate" in unknown[-1]


GPT_OSS = MODELS["openai/gpt-oss-120b"]
FP8_AND_INT8 = ("checkpoint.fp8_dense.mode=online", "checkpoint.lm_head=int8")


def resolved_of(name: str, *settings: str) -> Resolved:
    return load_recipe(SHIPPED, name, settings)


def test_attention_and_head_at_16_bits_become_half() -> None:
    made = resolved_of("gpt-oss-120b", *FP8_AND_INT8)
    after = decode_step(made, GPT_OSS, ACCEPTANCE)
    assert after is not None
    without = steps_without(made, GPT_OSS, ACCEPTANCE)
    assert list(without) == ["FP8 of dense layers", "LM head", TOGETHER]
    # What was told of this model: 5.05 GB a step, 3.5 with both.
    assert without[TOGETHER].total_bytes / 1e9 == pytest.approx(5.05, abs=0.02)
    assert after.total_bytes / 1e9 == pytest.approx(3.5, abs=0.02)
    saved = sum(without[what].total_bytes - after.total_bytes for what in list(without)[:2])
    assert saved == pytest.approx(without[TOGETHER].total_bytes - after.total_bytes)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_saves_its_share(ranks: int) -> None:
    made = resolved_of("gpt-oss-120b", *FP8_AND_INT8).recipe
    known = replace(GPT_OSS, dense_share=dense_share_of(GPT_OSS))
    facts = facts_of_step(known, tensor_parallel=ranks)
    attention = converted_weights(facts, made)[WeightKind.ATTENTION]
    assert attention * ranks == pytest.approx(GPT_OSS.weight_bytes[WeightKind.ATTENTION] / 2, 0.01)


def test_what_is_quantised_already_stays_as_it_is() -> None:
    """An FP8 repository's shared experts and attention, and a head of NVFP4."""
    fp8 = MODELS["Qwen/Qwen3.6-35B-A3B-FP8"]
    made = resolved_of("qwen3.6-35b", "checkpoint.fp8_dense.mode=online").recipe
    assert converted_weights(fp8, made) == dict(fp8.memory_bytes)
    packed = MODELS["nvidia/Qwen3.6-35B-A3B-NVFP4"]
    int8 = resolved_of("qwen3.6-35b-nvfp4", "checkpoint.lm_head=int8").recipe
    head = WeightKind.LM_HEAD
    assert converted_weights(packed, int8)[head] == packed.memory_bytes[head]


def test_a_drafter_asks_the_frequent_tokens_once_a_block() -> None:
    rows = 32_768
    whole, few = (
        step_of("dflash", f"checkpoint.draft_lm_head={draft}").parts[StepPart.DRAFT_HEAD]
        for draft in ("null", f"{{rows: {rows}}}")
    )
    assert few == rows * (3072 + 4) < whole


@pytest.mark.parametrize("method", ["eagle", "eagle3", "dflash"])
def test_drafters_that_use_the_model_s_head_take_a_draft_vocabulary(method: str) -> None:
    drafting = f"serve.speculative={{method: {method}, model: a/b, tokens: 2}}"
    resolved_of("v3", drafting, "checkpoint.mtp_weights=bf16", "engine=cuda-0.33")


@pytest.mark.parametrize("method", ["ngram", "medusa", "draft_model"])
def test_what_drafts_without_that_head_takes_none(method: str) -> None:
    drafting = f"serve.speculative={{method: {method}, model: a/b, tokens: 2}}"
    with pytest.raises(RecipeError) as caught:
        resolved_of("v3", drafting, "checkpoint.mtp_weights=bf16", "engine=cuda-0.33")
    assert "a draft head is for what drafts" in f"{caught.value.detail}"


def test_what_changes_nothing_is_not_told() -> None:
    for made in (
        resolved_of("gpt-oss-120b"),
        resolved_of("gpt-oss-120b", "checkpoint.fp8_dense={mode: 'off', layers: shared_expert}"),
    ):
        assert list(conversion_lines(made, GPT_OSS, ACCEPTANCE)) == []
        assert list(treated_lines(made.recipe.checkpoint, GPT_OSS.architecture, {})) == []


def test_the_plan_names_layers_and_rows_with_their_bytes() -> None:
    checkpoint = resolved_of("v3").recipe.checkpoint
    layers = BIG.architecture
    assert list(treated_lines(checkpoint, layers, {"q_proj": 10**9, "o_proj": 10**9})) == [
        "FP8 while loading: q_proj, o_proj: 2.00 -> 1.00 GB a step",
        "drafts from 65,536 of 248,320 tokens: 0.76 -> 0.20 GB of LM head for each draft",
    ]
