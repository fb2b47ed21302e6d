"""Which conversions a family has, by its configuration alone."""

from __future__ import annotations

import pytest

from sparkdeploy.checkpoint.contents import model_sizes, shared_expert_shapes
from sparkdeploy.checkpoint.conversion import Conversion, unfit
from tests.families import NAMES, config
from tests.families.checkpoints import METHODS, plain

FP8 = Conversion(fp8_mode="online")
INT8 = Conversion(lm_head="int8")
MTP = Conversion(fp8_mode="online", mtp="required")
ALL = Conversion(fp8_mode="online", fp8_layers="all")
SHARED = Conversion(shared_experts="int4")
SHRUNK = Conversion(mtp="required", mtp_weights="int4-fp8")
# BERT has no head at all, and Mamba's configuration says nothing of one.
WITH_HEADS = [name for name in NAMES if name not in {"bert"}]


@pytest.mark.parametrize("family", ["qwen3.5-moe", "qwen3-next"])
def test_qwens_hybrids_have_every_conversion(family: str) -> None:
    for conversion in (FP8, INT8, MTP, SHARED, SHRUNK):
        assert list(unfit(config(family), conversion)) == []


def test_names_of_shared_experts_are_those_of_the_checkpoint() -> None:
    names = dict(shared_expert_shapes(model_sizes(config("qwen3-next"))))
    assert names.keys() <= plain("qwen3-next").keys()
    assert len(names) == 3 * 8


@pytest.mark.parametrize("family", ["llama", "qwen3-dense", "gpt-oss", "glm4-moe", "deepseek-v3"])
def test_who_has_no_shared_experts_of_that_kind_is_told(family: str) -> None:
    assert "layers is shared_expert" in next(unfit(config(family), FP8))
    for conversion, field in ((SHARED, "checkpoint.shared_experts"), (SHRUNK, "mtp_weights")):
        assert any(field in reason for reason in unfit(config(family), conversion))


@pytest.mark.parametrize("family", WITH_HEADS)
def test_a_head_of_its_own_can_be_int8_and_a_tied_one_not(family: str) -> None:
    reasons = list(unfit(config(family), INT8))
    # Google's configurations do not say it.
    is_tied = config(family).get("tie_word_embeddings", family.startswith("gemma"))
    assert bool(reasons) == is_tied
    assert all("so none can be converted" in reason for reason in reasons)


def test_who_has_no_draft_layer_is_told() -> None:
    assert any("no draft layer" in reason for reason in unfit(config("llama"), MTP))
    draft = Conversion(draft_rows=64)
    assert any("draft head" in reason for reason in unfit(config("llama"), draft))


@pytest.mark.parametrize("family", ["qwen3.5-moe", "qwen3-next", "glm4-moe", "deepseek-v3"])
def test_whoever_has_layers_that_draft_takes_a_draft_vocabulary(family: str) -> None:
    assert list(unfit(config(family), Conversion(draft_rows=64))) == []
    (reason,) = unfit(config(family), Conversion(draft_rows=10**9))
    assert "more than the" in reason


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_drafter_s_tokens_come_from_any_head_tied_or_not(family: str) -> None:
    tied = {**config(family), "tie_word_embeddings": True}
    assert list(unfit(tied, Conversion(draft_rows=64, has_drafter=True))) == []


@pytest.mark.parametrize("method", [*METHODS, "mxfp4", "auto-round"])
def test_every_quantisation_takes_what_it_leaves_at_16_bits(method: str) -> None:
    stated = {**config("qwen3-next"), "quantization_config": {"quant_method": method}}
    for conversion in (INT8, Conversion(draft_rows=64), ALL):
        assert list(unfit(stated, conversion)) == []


@pytest.mark.parametrize("method", ["bitsandbytes", "gguf", "torchao", "", None, 1])
def test_what_engines_load_in_ways_of_their_own_is_refused(method: object) -> None:
    stated = {**config("llama"), "quantization_config": {"quant_method": method}}
    assert any("which is not converted" in reason for reason in unfit(stated, INT8))


def test_no_conversion_fits_every_model() -> None:
    assert list(unfit({"model_type": "starship"}, Conversion())) == []
