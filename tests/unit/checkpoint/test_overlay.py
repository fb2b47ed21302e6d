"""Overlays: an edited configuration over files that nobody touches."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.checkpoint.conversion import Conversion, check_source
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checkpoint.overlay import build_overlay, overlay_fingerprint
from sparkdeploy.checkpoint.safetensors import read_header, write_file
from sparkdeploy.checkpoint.source import CheckpointSource, find_in_hub_cache, open_folder
from sparkdeploy.errors import CheckpointError
from tests.fakes.checkpoints import edit_json
from tests.unit.checkpoint.conftest import tree

V2 = Conversion(fp8_mode="online", lm_head="int8", mtp="required")
_INDEX = "model.safetensors.index.json"


@pytest.fixture(params=["hub", "folder"])
def source(request: pytest.FixtureRequest) -> CheckpointSource:
    if request.param == "folder":
        return open_folder(request.getfixturevalue("folder"))
    found = find_in_hub_cache("lab/twin", None, request.getfixturevalue("hub_cache"))
    assert found is not None
    return found


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "m" / "ck" / "v2"


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit_json(folder / "config.json", change)


def test_an_overlay_is_links_to_the_source_and_three_files_of_its_own(
    source: CheckpointSource, target: Path
) -> None:
    build_overlay(source, V2, target)
    own = {path.name for path in target.iterdir() if not path.is_symlink()}
    assert own == {"config.json", _INDEX, "sparkdeploy.json"}
    linked = {path.name for path in target.iterdir() if path.is_symlink()}
    assert linked | own == {str(path) for path in source.files()} | {"sparkdeploy.json"}


def test_the_configuration_names_the_plugin_and_keeps_the_rest(
    source: CheckpointSource, target: Path
) -> None:
    build_overlay(source, V2, target)
    before, after = _json(source.files_dir / "config.json"), _json(target / "config.json")
    quantization = after.pop("quantization_config")
    original = before.pop("quantization_config")
    assert after == before
    assert quantization.pop("quant_method") == "spark-hybrid"
    assert original.pop("quant_method") == "auto-round"
    assert quantization.pop("spark_hybrid") == {
        "version": 1,
        "base_method": "auto-round",
        "model_type": before["model_type"],
        "fp8": {"mode": "online", "layers": "shared_expert", "block": [128, 128]},
        "lm_head": "int8",
        "expected_fp8_layers": 12,
    }
    assert quantization == original


def test_the_index_comes_from_the_headers_and_not_from_the_old_index(
    folder: Path, target: Path
) -> None:
    (folder / _INDEX).write_text(json.dumps({"weight_map": {}}))
    build_overlay(open_folder(folder), V2, target)
    truth = {
        name: path.name
        for path in folder.glob("*.safetensors")
        for name in read_header(path).tensors
    }
    assert _json(target / _INDEX)["weight_map"] == truth


def test_the_manifest_says_what_was_made_from_what(source: CheckpointSource, target: Path) -> None:
    result = build_overlay(source, V2, target)
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.fingerprint == result.fingerprint == overlay_fingerprint(source, V2)
    assert (manifest.source_name, manifest.source_revision) == (source.name, source.revision)
    assert manifest.fp8_layer_count == result.fp8_layer_count == 12
    assert manifest.mtp_tensor_count == result.mtp_tensor_count == 3 * 2 + 17


def test_another_conversion_replaces_the_overlay(source: CheckpointSource, target: Path) -> None:
    build_overlay(source, V2, target)
    hybrid = Conversion(fp8_mode="online")
    build_overlay(source, hybrid, target)
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.fingerprint == overlay_fingerprint(source, hybrid)
    assert {path.name for path in target.parent.iterdir()} == {"v2", ".v2.lock"}


def test_a_failed_build_leaves_the_old_overlay_and_nothing_beside_it(
    folder: Path, target: Path
) -> None:
    build_overlay(open_folder(folder), V2, target)
    before = tree(target)
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="00001"):
        build_overlay(open_folder(folder), V2, target)
    assert {name: entry[:2] for name, entry in tree(target).items()} == {
        name: entry[:2] for name, entry in before.items()
    }
    assert {path.name for path in target.parent.iterdir()} == {"v2", ".v2.lock"}


@pytest.mark.parametrize(
    ("conversion", "nothing"),
    [(Conversion(), True), (Conversion(mtp="required"), True), (V2, False)],
)
def test_only_a_conversion_that_converts_needs_an_overlay(
    conversion: Conversion, nothing: bool
) -> None:
    assert conversion.is_none is nothing


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("text_config", {"mtp_num_hidden_layers": 0}, "no draft layer"),
        ("text_config", {"num_hidden_layers": 5}, r"3 of 15 shared-expert .*layers\.4\.mlp"),
        (
            "text_config",
            {"shared_expert_intermediate_size": 512},
            r"gate_proj.* is BF16 \[256, 128\], where",
        ),
        (None, {"tie_word_embeddings": True}, "its LM head is its embeddings"),
        (None, {"quantization_config": {"quant_method": "gguf"}}, "quantised by 'gguf'"),
    ],
)
def test_a_configuration_that_does_not_fit_the_conversion_is_refused(
    folder: Path, section: str | None, change: dict[str, object], said: str
) -> None:
    _edit_config(folder, lambda it: (it[section] if section else it).update(change))
    with pytest.raises(CheckpointError, match=said):
        check_source(open_folder(folder), V2)


def test_a_tensor_in_two_files_is_refused_unless_the_index_decides(folder: Path) -> None:
    extra = "zz-extra.safetensors"
    write_file(folder / extra, {"lm_head.weight": ("U8", (1,), b"x")})
    facts = check_source(open_folder(folder), V2)
    assert facts.tensors["lm_head.weight"].file != extra
    (folder / _INDEX).unlink()
    with pytest.raises(CheckpointError, match=f"lm_head.weight stands in both .* and {extra}"):
        check_source(open_folder(folder), V2)


def test_the_fingerprint_depends_on_source_and_conversion(folder: Path) -> None:
    source = open_folder(folder)
    before = overlay_fingerprint(source, V2)
    assert overlay_fingerprint(source, V2) == before
    assert overlay_fingerprint(source, Conversion(lm_head="int8")) != before
    (folder / "config.json").write_text("{}")
    assert overlay_fingerprint(source, V2) != before


def test_an_overlay_of_another_snapshot_is_another_one(hub_cache: Path) -> None:
    """Its links lead into the snapshot, which may go when the branch has moved."""
    (snapshot,) = (hub_cache / "models--lab--twin" / "snapshots").iterdir()
    shutil.copytree(snapshot, snapshot.with_name("f" * 40), symlinks=True)
    sources = [find_in_hub_cache("lab/twin", name, hub_cache) for name in ("main", "f" * 40)]
    assert len({overlay_fingerprint(it, V2) for it in sources if it is not None}) == 2
