"""`verify` and `inspect` of any family: sound ones are sound, and every damage is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint.family.kinds import WeightKind, kinds_for
from sparkdeploy.checkpoint.verify import verify_headers
from sparkdeploy.errors import CheckpointError
from tests.families import NAMES, config
from tests.families.checkpoints import METHODS, linears, packed, plain, write
from tests.unit.checkpoint.tensor_kinds import shares_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.families.checkpoints import Tensors

# Of Qwen3.5-MoE every rule is known, and the twin is held against them.
KNOWN = [
    name
    for name in NAMES
    if name
    not in {
        *("bert", "cohere2", "falcon-h1", "gemma4", "granite-hybrid", "llama4", "mamba2"),
        "qwen3.5-moe",
    }
]
PACKED = ["llama", "qwen3-moe", "deepseek-v3", "nemotron-h", "qwen3-next"]


@pytest.mark.parametrize("family", KNOWN)
def test_a_checkpoint_with_all_that_its_configuration_promises_is_sound(
    tmp_path: Path, family: str
) -> None:
    found = verify_headers(write(tmp_path, plain(family), config(family)))
    assert found.tensors == len(plain(family))
    assert found.not_known == ()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", PACKED)
def test_a_packed_checkpoint_is_sound(tmp_path: Path, family: str, method: str) -> None:
    assert verify_headers(write(tmp_path, *packed(family, method))).not_known == ()


@pytest.mark.parametrize("family", ["cohere2", "falcon-h1", "mamba2"])
def test_a_family_whose_tensors_are_not_known_is_not_called_broken(
    tmp_path: Path, family: str
) -> None:
    tensors: Tensors = {"model.embed_tokens.weight": ("BF16", (512, 256))}
    found = verify_headers(write(tmp_path, tensors, config(family)))
    assert "were not held against config.json" in found.not_known[0]


def test_an_architecture_and_a_packing_that_nobody_knows_are_named(tmp_path: Path) -> None:
    tensors: Tensors = {"model.layers.0.strange.weight": ("BF16", (4, 4))}
    found = {"model_type": "starship", "quantization_config": {"quant_method": "warp"}}
    said = verify_headers(write(tmp_path, tensors, found)).not_known
    assert any("'warp'" in line for line in said)
    assert any("'starship'" in line for line in said)


def problems(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        verify_headers(folder)
    return str(caught.value.detail)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_tensor_that_is_missing_or_of_another_shape_is_named(
    tmp_path: Path, data: st.DataObject
) -> None:
    family = data.draw(st.sampled_from(KNOWN))
    tensors = plain(family)
    name = data.draw(st.sampled_from(sorted(tensors)))
    dtype, shape = tensors.pop(name)
    assert name.removeprefix("model.") in problems(write(tmp_path, tensors, config(family)))
    tensors[name] = dtype, (*shape[:-1], shape[-1] + 1)
    assert name in problems(write(tmp_path, tensors, config(family)))


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_scale_that_is_missing_or_does_not_fit_is_named(
    tmp_path: Path, data: st.DataObject
) -> None:
    family, method = data.draw(st.sampled_from(PACKED)), data.draw(st.sampled_from(METHODS))
    tensors, found = packed(family, method)
    stem = data.draw(st.sampled_from(sorted(linears(family)))).removesuffix("weight")
    scales = [
        name
        for name in (f"{stem}weight_scale_inv", f"{stem}weight_scale", f"{stem}scales")
        if name in tensors
    ]
    dtype, shape = tensors.pop(scales[0])
    assert stem.rstrip(".") in problems(write(tmp_path, tensors, found))
    tensors[scales[0]] = dtype, (shape[0] + 1, *shape[1:])
    assert stem.rstrip(".") in problems(write(tmp_path, tensors, found))


def test_what_no_engine_minds_is_sound(tmp_path: Path) -> None:
    """A stored tied head, tables of positions, experts in one tensor, FP8 scales by rows."""
    tied = plain("qwen3-dense")
    tied["lm_head.weight"] = ("BF16", (512, 256))
    tied["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (64,))
    verify_headers(write(tmp_path / "tied", tied, config("qwen3-dense")))
    fused = {name: it for name, it in plain("qwen3-moe").items() if ".experts." not in name}
    for layer in range(4):
        fused[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = ("BF16", (8, 256, 256))
        fused[f"model.layers.{layer}.mlp.experts.down_proj"] = ("BF16", (8, 256, 128))
    verify_headers(write(tmp_path / "fused", fused, config("qwen3-moe")))
    rows, found = packed("llama", "fp8")
    for name in [name for name in rows if name.endswith("weight_scale_inv")]:
        del rows[name]
        stem = name.removesuffix("weight_scale_inv")
        rows[f"{stem}weight_scale"] = ("F32", (rows[f"{stem}weight"][1][0], 1))
    stated: dict[str, Any] = {**found, "quantization_config": {"quant_method": "fp8"}}
    verify_headers(write(tmp_path / "rows", rows, stated))


@pytest.mark.parametrize("family", KNOWN)
def test_no_tensor_is_of_unknown_kind_and_kinds_add_up(tmp_path: Path, family: str) -> None:
    folder = write(tmp_path, plain(family), config(family))
    shares = shares_of(folder)
    assert WeightKind.OTHER not in {kind for kind, _ in shares}
    size = (folder / "model.safetensors").stat().st_size
    assert 0 < size - sum(share.size_bytes for share in shares.values()) < 100_000


@given(st.text(max_size=60), st.integers(0, 100))
def test_every_name_has_one_kind(name: str, layers: int) -> None:
    assert kinds_for({"num_hidden_layers": layers})(name) in WeightKind
