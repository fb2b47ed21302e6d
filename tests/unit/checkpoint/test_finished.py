"""Checkpoints whose shared experts are FP8 already: served as what they are, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.conversion import Conversion, check_source
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.verify import verify_headers
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep.checkpoints import pull_repositories
from tests.fakes.checkpoints import edit_tensors, ignore, standalone
from tests.hub.double import HubDouble, Repo
from tests.unit.checkpoint.conftest import tree

pytestmark = pytest.mark.outside

COMMIT = "d" * 40
REPO = "bleysg/Qwen3.5-122B-A10B-int4-fp8-hybrid"
GATE = "model.language_model.layers.0.mlp.shared_expert.gate_proj"
V2 = Conversion(fp8_mode="finished", lm_head="int8", mtp="required")


@pytest.fixture(scope="module")
def finished(small_twin: Path, fp8_twin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished hybrid that no test may change."""
    folder = tmp_path_factory.mktemp("finished")
    order = Order(model_sizes(read_config(small_twin)), "lab", model=small_twin)
    shard = fetch_shard(FolderRanges(fp8_twin), order, folder / "fp8", ignore)
    standalone(open_folder(small_twin), shard, folder / "hybrid")
    return folder / "hybrid"


def damaged(finished: Path, out: Path, lost: str) -> Path:
    """A copy without one tensor; its index knows it is gone."""
    shutil.copytree(finished, out)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    edit_tensors(out / index["weight_map"].pop(lost), lambda tensors: tensors.pop(lost))
    index["metadata"] = {}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    return out


def test_the_overlay_links_it_and_tells_the_plugin(finished: Path, tmp_path: Path) -> None:
    before = tree(finished)
    target = tmp_path / "m" / "ck" / "hybrid"
    made = build_overlay(open_folder(finished), V2, target)
    assert (made.fp8_layer_count, made.mtp_tensor_count) == (12, 23)
    block = json.loads((target / "config.json").read_text())["quantization_config"]
    assert block["quant_method"] == "spark-hybrid"
    assert block["spark_hybrid"]["fp8"]["mode"] == "finished"
    assert block["spark_hybrid"]["expected_fp8_layers"] == 12
    assert all(path.is_symlink() for path in target.glob("*.safetensors"))
    assert verify_headers(target).fp8_weights == 12
    assert tree(finished) == before


@pytest.mark.parametrize("mode", ["off", "online", "prebuilt"])
def test_a_recipe_that_expects_plain_weights_refuses_one(finished: Path, mode: str) -> None:
    conversion = Conversion(fp8_mode=mode, lm_head="int8")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="FP8 already") as caught:
        check_source(open_folder(finished), conversion)
    assert "from: hub" in (caught.value.hint or "")


def test_the_recipe_pulls_it_and_its_headers_were_looked_at_first(
    finished: Path, hub: HubDouble
) -> None:
    hub.repos[REPO] = Repo({COMMIT: finished}, {"main": COMMIT})
    (pulled,) = pull_repositories("v2-hub", load_settings(), anew=False, all_files=False)
    assert (pulled.repo, pulled.commit) == (REPO, COMMIT)
    assert verify_headers(pulled.path).fp8_weights == 12


@pytest.mark.parametrize("lost", [f"{GATE}.weight_scale_inv", "mtp.layers.0.mlp.gate.weight"])
def test_one_that_lacks_a_tensor_is_refused_before_it_is_fetched(
    finished: Path, hub: HubDouble, tmp_path: Path, lost: str
) -> None:
    folder = damaged(finished, tmp_path / "hybrid", lost)
    hub.repos[REPO] = Repo({COMMIT: folder}, {"main": COMMIT})
    with pytest.raises(CheckpointError, match="missing"):
        pull_repositories("v2-hub", load_settings(), anew=False, all_files=False)
    total_bytes = sum(path.stat().st_size for path in folder.iterdir())
    assert hub.body_bytes < total_bytes / 2
    assert not list((tmp_path / "hub").rglob("*.safetensors"))
