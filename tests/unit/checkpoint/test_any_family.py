"""`verify` and `inspect` of any family: sound ones are sound, and every damage is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint.verify import verify_headers
from sparkdeploy.errors import CheckpointError
from tests.families import NAMES, config
from tests.families.checkpoints import METHODS, linears, packed, plain, write

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
def test_every_scale_that_is_missing_is_named(tmp_path: Path, data: st.DataObject) -> None:
    family, method = data.draw(st.sampled_from(PACKED)), data.draw(st.sampled_from(METHODS))
    tensors, found = packed(family, method)
    stem = data.draw(st.sampled_from(sorted(linears(family)))).removesuffix("weight")
    scales = [
        name
        for name in (f"{stem}weight_scale_inv", f"{stem}weight_scale", f"{stem}scales")
        if name in tensors
    ]
    del tensors[scales[0]]
    assert stem.rstrip(".") in problems(write(tmp_path, tensors, found))
