"""Which dense layers of a checkpoint become FP8 while loading, of every family and method."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.checkpoint.contents import read_quantization, read_tensors
from sparkdeploy.checkpoint.conversion import Conversion, check_source, unfit
from sparkdeploy.checkpoint.dense_layers import dense_layers
from sparkdeploy.checkpoint.expected_tensors import expected_tensors
from sparkdeploy.checkpoint.overlay import overlay_config
from sparkdeploy.checkpoint.safetensors import TensorInfo
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.model import WeightKind, kinds_for
from tests.families import NAMES, config
from tests.families.checkpoints import METHODS, linears, packed, plain, write

ALL = Conversion(fp8_mode="online", fp8_layers="all")
KNOWN = [name for name in NAMES if name != "mamba2" and expected_tensors(config(name))]
DENSE = {
    *(WeightKind.ATTENTION, WeightKind.GDN, WeightKind.MAMBA),
    *(WeightKind.SHARED_EXPERTS, WeightKind.FEED_FORWARD),
}
NEVER = re.compile(
    r"norm|router|(^|\.)gate$|shared_expert_gate|conv1d|embed|lm_head|A_log|dt_bias|in_proj_ba?$"
    r"|in_proj_a$|kv_b_proj|indexer|\.experts\.|^mtp\."
)


def taken(found: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> set[str]:
    infos = [TensorInfo(name, dtype, shape, 0, 0) for name, (dtype, shape) in tensors.items()]
    return set(dense_layers(found, infos))


@pytest.mark.parametrize("family", KNOWN)
def test_of_16_bits_only_projections_of_layers_are_taken(family: str) -> None:
    kind_of, found = kinds_for(config(family)), taken(config(family), plain(family))
    assert found
    for module in found:
        assert kind_of(f"{module}.weight") in DENSE, module
        assert not NEVER.search(module), module


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["llama", "qwen3-next", "qwen3.5-moe", "nemotron-h-moe"])
def test_what_a_checkpoint_quantises_is_not_touched(family: str, method: str) -> None:
    tensors, found = packed(family, method)
    assert taken(found, tensors) == set()
    # A publisher who leaves attention out leaves out all that an engine fuses.
    left = {name for name in linears(family) if ".self_attn." in name}
    kept = {name: it for name, it in plain(family).items() if name in left}
    rest = {name: it for name, it in tensors.items() if ".self_attn." not in name}
    assert taken(found, {**rest, **kept}) == {
        name.removesuffix(".weight") for name in left if not NEVER.search(name)
    }


def test_what_an_engine_fuses_is_taken_whole_or_not_at_all() -> None:
    tensors, found = packed("llama", "gptq")
    stem = "model.layers.0.self_attn."
    half = {name: it for name, it in plain("llama").items() if name == f"{stem}q_proj.weight"}
    rest = {name: it for name, it in tensors.items() if not name.startswith(f"{stem}q_proj.")}
    assert taken(found, {**rest, **half}) == set()


@pytest.mark.parametrize(
    "name",
    [
        "model.visual.blocks.layers.0.self_attn.q_proj.weight",
        "vision_tower.encoder.layers.0.self_attn.out_proj.weight",
        *("mtp.layers.0.self_attn.o_proj.weight", "model.layers.99.self_attn.o_proj.weight"),
        *("model.layers.0.mlp.experts.3.down_proj.weight", "model.layers.0.mlp.gate.weight"),
        *("model.layers.0.self_attn.o_proj.weight_scale", "model.layers.0.self_attn.o_proj.bias"),
        *("model.layers.0.self_attn.\u00f6_proj.weight", ""),
    ],
)
def test_nothing_else_is_taken(name: str) -> None:
    assert taken({"num_hidden_layers": 2}, {name: ("BF16", (256, 256))}) == set()


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("F32", (256, 256)), ("F8_E4M3", (256, 256)), ("BF16", (256,)), ("BF16", (250, 256))],
)
def test_another_form_is_left_as_it_is(dtype: str, shape: tuple[int, ...]) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    for count in (None, True, 0.5, "2"):
        assert taken({"num_hidden_layers": count}, {name: (dtype, shape)}) == set()


@pytest.mark.parametrize("method", METHODS)
def test_the_overlay_lists_them_and_keeps_the_checkpoint_s_own_words(
    tmp_path: Path, method: str
) -> None:
    tensors, found = packed("qwen3-next", method)
    kept = {name: it for name, it in plain("qwen3-next").items() if ".linear_attn.in_" in name}
    rest = {name: it for name, it in tensors.items() if ".linear_attn.in_" not in name}
    source = open_folder(write(tmp_path / "m", {**rest, **kept}, found))
    assert list(unfit(found, ALL)) == []
    facts = check_source(source, ALL)
    stated = overlay_config(facts, ALL)["quantization_config"]
    block = stated.pop("spark_hybrid")
    assert block["base_method"] == method
    assert len(block["fp8"]["modules"]) == block["expected_fp8_layers"] > 0
    assert {**stated, "quant_method": method} == found["quantization_config"]


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_list_of_modelopt_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "hf_quant_config.json").write_text(content)
    with pytest.raises(CheckpointError, match="hf_quant_config"):
        read_quantization(tmp_path, {})


def test_modelopt_s_own_file_says_how_single_layers_are(tmp_path: Path) -> None:
    layers = {"quantized_layers": {"model.layers.0.mlp": {"quant_algo": "NVFP4"}}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": layers}))
    for stated in ({"quantization_config": {"quant_method": "modelopt"}}, {}):
        assert read_quantization(tmp_path, stated) == {
            "quant_method": "modelopt",
            "quantization": layers,
        }
    other = {"quantization_config": {"quant_method": "fp8"}}
    assert read_quantization(tmp_path, other) == {"quant_method": "fp8"}
    within = {"text_config": {"quantization_config": {"quant_method": "gptq"}}}
    assert read_quantization(tmp_path, within) == {"quant_method": "gptq"}


def test_a_head_quantised_by_the_checkpoint_is_refused(tmp_path: Path) -> None:
    tensors, found = packed("llama", "fp8")
    tensors["lm_head.weight"] = ("F8_E4M3", tensors["lm_head.weight"][1])
    source = open_folder(write(tmp_path / "m", tensors, found))
    for conversion in (Conversion(lm_head="int8"), Conversion(draft_rows=64, has_drafter=True)):
        with pytest.raises(CheckpointError, match="lm_head"):
            check_source(source, conversion)
    assert "model.layers.0.self_attn.q_proj.weight" in read_tensors(source.files_dir)
