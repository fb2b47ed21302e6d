"""What each conversion saves of a step, of models that publishers quantised in many ways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.memory import converted_weights
from sparkdeploy.estimate.model import WeightKind, dense_share_of, facts_of_step
from sparkdeploy.estimate.report import TOGETHER, conversion_lines, steps_without, treated_lines
from sparkdeploy.estimate.speed import StepPart, decode_step
from sparkdeploy.recipe.load import Resolved, load_recipe
from tests.unit.estimate.test_speed import ACCEPTANCE, MODELS, SHIPPED, step_of

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
    layers = MODELS["Intel/Qwen3.5-122B-A10B-int4-AutoRound"].architecture
    assert list(treated_lines(checkpoint, layers, {"q_proj": 10**9, "o_proj": 10**9})) == [
        "FP8 while loading: q_proj, o_proj: 2.00 -> 1.00 GB a step",
        "drafts from 65,536 of 248,320 tokens: 0.76 -> 0.20 GB of LM head for each draft",
    ]
