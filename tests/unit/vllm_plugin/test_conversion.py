"""Which layers become FP8, which configurations are understood, and where blocks may be cut."""

# mypy: disable-error-code="import-not-found"

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkdeploy_vllm.weights.conversion import (
    HybridConversion,
    checkpoint_modules,
    is_draft_dense,
    is_fp8_layer,
    layer_key,
    refuse_broken_blocks,
    refuse_broken_groups,
)

BLOCK: dict[str, Any] = {
    "version": 1,
    "base_method": "auto-round",
    "fp8": {"mode": "online", "layers": "shared_expert", "block": [128, 128]},
    "lm_head": "int8",
    "expected_fp8_layers": 144,
}

SHARED = {"dtype": "int4", "group": 128, "int4_layers": 144}
DRAFT = {"experts": "int4", "group": 128, "dense": "fp8", "int4_layers": 1, "fp8_layers": 8}


@pytest.mark.parametrize("name", ["gate_up_proj", "gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize(
    "stem", ["language_model.model.layers.47", "model.language_model.layers.0", "model.layers.3"]
)
def test_shared_expert_projections_are_fp8(stem: str, name: str) -> None:
    assert is_fp8_layer(f"{stem}.mlp.shared_expert.{name}")


@pytest.mark.parametrize(
    "prefix",
    [
        *("model.layers.0.mlp.shared_expert_gate", "model.layers.0.mlp.shared_expert"),
        "model.layers.0.mlp.shared_expert.gate_proj.weight",
        "model.layers.0.mlp.shared_expert.gate_projx",
        "model.layers.0.mlp.xshared_expert.gate_proj",
        *("model.layers.0.xmlp.shared_expert.gate_proj", "model.layers.0.mlp.experts.7.gate_proj"),
        "model.layers.0.mlp.shared_experts.gate_proj",
        "model.layers.0.mlp.shared_expert.down_proj\n",
        "mtp.layers.0.mlp.shared_expert.gate_up_proj",
        *("model.mtp.layers.0.mlp.shared_expert.down_proj", ""),
    ],
)
def test_nothing_else_is(prefix: str) -> None:
    assert not is_fp8_layer(prefix)


def test_fused_layers_count_as_the_modules_they_hold() -> None:
    packed = {"gate_up_proj": ["gate_proj", "up_proj"]}
    assert checkpoint_modules("model.layers.0.mlp.shared_expert.gate_up_proj", packed) == 2
    assert checkpoint_modules("model.layers.0.mlp.shared_expert.down_proj", packed) == 1
    assert checkpoint_modules("model.layers.0.mlp.shared_expert.gate_up_proj", {}) == 2


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("model.language_model.layers.3.self_attn.q_proj", "layers.3.self_attn.q_proj"),
        ("backbone.layers.3.mixer.in_proj", "layers.3.mixer.in_proj"),
        ("vision_tower.layers.3.self_attn.q_proj", ""),
        ("model.visual.layers.3.self_attn.q_proj", ""),
        ("lm_head", ""),
        ("model.layers", ""),
        ("", ""),
    ],
)
def test_a_layer_s_key_is_what_engines_keep_of_its_name(name: str, key: str) -> None:
    assert layer_key(name) == key


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version"),
        ({"base_method": "bitsandbytes"}, "base_method"),
        ({"base_method": ""}, "base_method"),
        ({"fp8": {"mode": "prebuilt", "layers": "all", "modules": ["a"]}}, "fp8"),
        ({"fp8": {"mode": "online", "layers": "all", "modules": []}}, "modules"),
        ({"lm_head": "int2"}, "lm_head"),
        ({"fp8": {"mode": "static", "layers": "shared_expert", "block": [128, 128]}}, "static"),
        ({"fp8": {"mode": "online", "layers": "all", "block": [128, 128]}}, "all"),
        ({"fp8": {"mode": "online", "layers": "shared_expert", "block": [64, 128]}}, "block"),
        ({"fp8": {**BLOCK["fp8"], "kernel": "triton"}}, "kernel"),
        ({"fp8": "online"}, "fp8"),
        ({"draft_layer": "int4"}, "draft_layer"),
        ({"fp8": None, "shared_experts": "int4"}, "shared_experts"),
        ({"fp8": None, "shared_experts": {**SHARED, "dtype": "int8"}}, "shared_experts"),
        ({"fp8": None, "shared_experts": {**SHARED, "group": 64}}, "shared_experts"),
        ({"shared_experts": SHARED}, "FP8 and of INT4"),
        ({"draft_layer": {**DRAFT, "experts": "int8"}}, "draft_layer"),
        ({"draft_layer": {**DRAFT, "group": 64}}, "draft_layer"),
        ({"draft_layer": {**DRAFT, "dense": "int8"}}, "draft_layer"),
    ],
)
def test_what_the_plugin_does_not_know_is_refused_by_name(
    change: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        HybridConversion.from_block({**BLOCK, **change})


@pytest.mark.parametrize(
    ("fp8", "kernel"),
    [(None, "vllm"), (BLOCK["fp8"], "vllm"), ({**BLOCK["fp8"], "kernel": "fused"}, "fused")],
)
def test_the_kernel_of_shared_experts_is_vllm_s_unless_it_says(fp8: object, kernel: str) -> None:
    assert HybridConversion.from_block({**BLOCK, "fp8": fp8}).fp8_kernel == kernel


@pytest.mark.parametrize("stem", ["mtp", "model.mtp", "draft_model.mtp"])
@pytest.mark.parametrize(
    "name",
    [
        *("fc", "layers.0.self_attn.qkv_proj", "layers.0.self_attn.o_proj"),
        *("layers.12.mlp.shared_expert.gate_up_proj", "layers.0.mlp.shared_expert.down_proj"),
        *("layers.0.mlp.gate_up_proj", "layers.0.mlp.down_proj"),
    ],
)
def test_matrices_of_a_draft_layer_are_its_own(stem: str, name: str) -> None:
    assert is_draft_dense(f"{stem}.{name}")
    assert not is_fp8_layer(f"{stem}.{name}")


@pytest.mark.parametrize(
    "prefix",
    [
        *("mtp.layers.0.mlp.gate", "mtp.layers.0.mlp.shared_expert_gate"),
        *("mtp.layers.0.mlp.experts", "mtp.layers.0.mlp.experts.3.down_proj"),
        *("mtp.layers.x.mlp.down_proj", "mtp.layers.0.self_attn.qkv_projx", "mtp.fc\n"),
        *("mtp.fc.weight", "model.layers.0.self_attn.qkv_proj"),
        *("model.layers.0.mlp.shared_expert.down_proj", "xmtp.fc", "mtp.norm", ""),
    ],
)
def test_no_router_gate_or_layer_of_the_model_is(prefix: str) -> None:
    assert not is_draft_dense(prefix)


@given(st.integers(min_value=1, max_value=64), st.integers(min_value=0, max_value=127))
def test_groups_that_a_rank_would_cut_are_refused_by_name(groups: int, rest: int) -> None:
    if not rest:
        refuse_broken_groups("mtp.fc", groups * 128, 128)
        return
    with pytest.raises(ValueError, match=r"mtp\.fc; use fewer tensor-parallel ranks"):
        refuse_broken_groups("mtp.fc", groups * 128 + rest, 128)


def test_shared_experts_are_read() -> None:
    assert HybridConversion.from_block(BLOCK).int4_shared_experts is None
    made = HybridConversion.from_block({**BLOCK, "fp8": None, "shared_experts": SHARED})
    assert made.int4_shared_experts == 144
    assert made.fp8_mode is None


LAYER = "model.layers.3.mlp.shared_expert.down_proj"


@given(ranks=st.integers(1, 8), rows=st.integers(1, 8), columns=st.integers(1, 8))
def test_parts_of_whole_blocks_are_taken(ranks: int, rows: int, columns: int) -> None:
    refuse_broken_blocks(LAYER, rows=[128 * rows], columns=128 * columns, is_parted=ranks > 1)


@pytest.mark.parametrize(("rows", "columns"), [([512, 512], 3072), ([3072], 512), ([128], 128)])
def test_the_real_shared_experts_split_over_two_ranks(rows: list[int], columns: int) -> None:
    refuse_broken_blocks(LAYER, rows=rows, columns=columns, is_parted=True)


@pytest.mark.parametrize(
    ("rows", "columns"), [([64, 64], 3072), ([3072], 64), ([128, 200], 128), ([1], 1)]
)
def test_a_part_that_ends_in_a_block_is_refused_by_name(rows: list[int], columns: int) -> None:
    with pytest.raises(ValueError, match=LAYER) as caught:
        refuse_broken_blocks(LAYER, rows=rows, columns=columns, is_parted=True)
    assert "fewer tensor-parallel ranks" in str(caught.value)


def test_a_whole_layer_may_end_in_a_partial_block() -> None:
    refuse_broken_blocks(LAYER, rows=[100], columns=64, is_parted=False)
