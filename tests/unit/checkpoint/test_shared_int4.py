"""Shared experts that become INT4: what is asked of the plugin, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.contents import read_tensors
from sparkdeploy.checkpoint.conversion import Conversion, check_source
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.checkpoint.verify import verify_headers
from sparkdeploy.errors import CheckpointError

INT4 = Conversion(lm_head="int8", mtp="required", shared_experts="int4")
WEIGHTS = 3 * 4
"""Gate, up and down of the twin's layers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("twin") / "twin"
    build_tiny_model(out, TinyShape(), seed=7)
    return out


@pytest.fixture
def overlay(folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "data" / "m" / "ck" / "shared"
    build_overlay(open_folder(folder), INT4, target)
    return target


def test_the_overlay_says_what_the_plugin_has_to_convert(folder: Path, overlay: Path) -> None:
    content = json.loads((overlay / "config.json").read_text())["quantization_config"]
    block = content["spark_hybrid"]
    assert block["shared_experts"] == {"dtype": "int4", "group": 128, "int4_layers": WEIGHTS}
    assert (block["fp8"], block["expected_fp8_layers"]) == (None, 0)
    manifest = read_manifest(overlay)
    assert manifest is not None
    assert manifest.shared_int4_count == WEIGHTS
    assert read_tensors(overlay).keys() == read_tensors(folder).keys(), "nothing is written"
    verify_headers(overlay)


def test_a_checkpoint_without_them_at_16_bits_is_refused(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        content = file.read_bytes()
        if file.suffix == ".safetensors":
            # A name of the same length: nobody has it.
            content = content.replace(
                b"layers.1.mlp.shared_expert.up", b"layers.1.mlp.xhared_expert.up"
            )
        if file.name != "model.safetensors.index.json":
            (broken / file.name).write_bytes(content)
    with pytest.raises(CheckpointError, match="1 of 12 shared-expert weights are missing"):
        check_source(open_folder(broken), INT4)
