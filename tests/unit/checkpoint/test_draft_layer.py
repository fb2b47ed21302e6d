"""A draft layer to shrink: what of it is counted, what is refused, and what the overlay says."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checkpoint.contents import Located, model_sizes, mtp_names, read_tensors
from sparkdeploy.checkpoint.conversion import Conversion, DraftWeights, draft_layer_of
from sparkdeploy.checkpoint.expected_tensors import missing_mtp
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.safetensors import TensorInfo
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.verify import verify_headers
from sparkdeploy.errors import CheckpointError
from tests.families import config

SHRUNK = Conversion(fp8_mode="online", lm_head="int8", mtp="required", mtp_weights="int4-fp8")
EXPERT = "mtp.layers.0.mlp.experts.3.down_proj.weight"
COUNTED = DraftWeights(int4_layers=1, fp8_layers=8)


def located(name: str, dtype: str = "BF16", shape: tuple[int, ...] = (256, 128)) -> Located:
    return Located("model.safetensors", TensorInfo(name, dtype, shape, 0, 2 * 256 * 128))


def layer(**changed: Located) -> dict[str, Located]:
    """The draft layer of the small Qwen3.5, all matrices alike."""
    names = mtp_names(model_sizes(config("qwen3.5-moe")))
    return {name: located(name) for name in names} | changed


def test_experts_in_one_tensor_are_one_layer_too() -> None:
    one_by_one = layer()
    fused = {name: item for name, item in one_by_one.items() if ".experts." not in name}
    for part in ("gate_up_proj", "down_proj"):
        name = f"mtp.layers.0.mlp.experts.{part}"
        fused[name] = located(name, shape=(8, 256, 128))
    assert draft_layer_of("it", fused) == COUNTED
    sizes = model_sizes(config("qwen3.5-moe"))
    assert missing_mtp(sizes, fused) == missing_mtp(sizes, one_by_one) == []
    down = "mtp.layers.0.mlp.experts.down_proj"
    del fused[down]
    count = config("qwen3.5-moe")["text_config"]["num_experts"]
    assert len(missing_mtp(sizes, fused)) == count > 0


@given(st.integers(min_value=1, max_value=6))
def test_every_layer_counts_and_fc_once(layers: int) -> None:
    whole = layer()
    more = {
        name.replace("layers.0", f"layers.{at}"): it
        for at in range(layers)
        for name, it in whole.items()
    }
    assert draft_layer_of("it", more) == DraftWeights(layers, 1 + 7 * layers)


@pytest.mark.parametrize(
    ("name", "item", "words"),
    [
        (EXPERT, located(EXPERT, "F8_E4M3"), "quantised already"),
        ("mtp.fc.qweight", located("mtp.fc.qweight", "I32"), "quantised already"),
        (EXPERT, located(EXPERT, shape=(128, 192)), "groups of 128"),
    ],
)
def test_what_cannot_be_shrunk_is_refused_by_name(name: str, item: Located, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        draft_layer_of("it", {**layer(), name: item})
    assert name in caught.value.message
    assert "mtp_weights: bf16" in (caught.value.hint or "")


def test_the_overlay_says_what_the_plugin_has_to_convert(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "data" / "m" / "ck" / "shrunk"
    build_overlay(open_folder(folder), SHRUNK, target)
    block = json.loads((target / "config.json").read_text())["quantization_config"]["spark_hybrid"]
    assert block["draft_layer"] == {
        "experts": "int4",
        "group": 128,
        "dense": "fp8",
        "int4_layers": 1,
        "fp8_layers": 8,
    }
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.draft_layer == COUNTED
    assert read_tensors(target).keys() == read_tensors(folder).keys(), "nothing is written"
    verify_headers(target)
