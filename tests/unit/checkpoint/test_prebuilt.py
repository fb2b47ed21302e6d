"""FP8 tensors by byte range, over real HTTP and from a folder, into one shard."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.checkpoint.contents import model_sizes, read_config, read_tensors
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.fp8 import expected_bytes, expected_fp8, own_name, unlike
from sparkdeploy.checkpoint.fp8_shard import SHARD_FILE, Fp8Shard, Order, fetch_shard, read_shard
from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import FolderRanges, HubRanges, RangeSource
from sparkdeploy.checkpoint.safetensors import TensorData, read_header
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.errors import CheckpointError
from tests.fakes.checkpoints import edit_json, edit_tensors, tensors_of
from tests.hub.double import Fault, HubDouble, Repo, hub_double

pytestmark = pytest.mark.outside

COMMIT = "f" * 40
REPO = "lab/twin-FP8"
FIRST = "model-00001-of-00002.safetensors"
PREFIX = "model.language_model.layers"
Fetch = Callable[[RangeSource], Fp8Shard]


@pytest.fixture
def double(fp8_twin: Path) -> Iterator[HubDouble]:
    with hub_double() as made:
        made.repos[REPO] = Repo({COMMIT: fp8_twin}, {"main": COMMIT})
        yield made


@pytest.fixture
def ranges(double: HubDouble, tmp_path: Path) -> HubRanges:
    hub = Hub(double.endpoint, tmp_path / "cache", sleep=lambda _seconds: None)
    return HubRanges(hub, hub.describe(REPO, "main"))


@pytest.fixture
def fetch(small_twin: Path, tmp_path: Path) -> Fetch:
    sizes = model_sizes(read_config(small_twin))

    def fetched(source: RangeSource) -> Fp8Shard:
        order = Order(sizes, "lab", model=small_twin)
        return fetch_shard(source, order, tmp_path / "fp8", lambda _done, _total: None)

    return fetched


def edited(fp8_twin: Path, tmp_path: Path, change: Callable[[dict[str, TensorData]], None]) -> Path:
    """A copy of the FP8 repository whose first shard was changed, with an index that knows it."""
    copy = tmp_path / "edited"
    shutil.copytree(fp8_twin, copy)
    names = edit_tensors(copy / FIRST, change)

    def list_anew(index: dict[str, Any]) -> None:
        others = {name: file for name, file in index["weight_map"].items() if file != FIRST}
        index["weight_map"] = {**others, **dict.fromkeys(names, FIRST)}

    edit_json(copy / "model.safetensors.index.json", list_anew)
    return copy


def tensor_bytes(folder: Path, name: str) -> bytes:
    content = tensors_of(folder / read_tensors(folder)[name].file)[name][2]
    assert isinstance(content, bytes)
    return content


def test_the_shard_holds_the_repositorys_bytes_under_names_of_its_own(
    ranges: HubRanges, fetch: Fetch, fp8_twin: Path, small_twin: Path
) -> None:
    shard = fetch(ranges)
    tensors = read_header(shard.path).tensors
    expected = expected_fp8(model_sizes(read_config(small_twin)))
    assert len(expected) == 4 * 3 * 2
    assert set(tensors) == {own_name(name) for name in expected}
    assert f"{PREFIX}.0.mlp.shared_expert.gate_proj.fp8_weight" in tensors
    for name in expected:
        content = tensor_bytes(fp8_twin, name)
        assert tensor_bytes(shard.path.parent, own_name(name)) == content
        assert shard.digests[own_name(name)] == hashlib.sha256(content).hexdigest()
    assert read_header(shard.path).metadata == {"format": "pt"}
    assert shard.path.stat().st_mode & 0o777 == 0o644


def test_wrong_bytes_of_an_answer_are_found_before_it_is_done_and_fetched_again(
    ranges: HubRanges, fetch: Fetch, double: HubDouble, tmp_path: Path
) -> None:
    whole = fetch(ranges).path.read_bytes()
    shutil.rmtree(tmp_path / "fp8")
    # The first two requests bring the header; the tensors come after them.
    double.faults = [Fault(f"{COMMIT}/{FIRST}", garble_from=0, skip=2)]
    double.seen.clear()
    double.body_bytes = 0
    assert fetch(ranges).path.read_bytes() == whole
    assert not double.faults[0].times
    assert double.body_bytes < 2 * len(whole)


@pytest.mark.parametrize("at", ["weight_begin", "weight_end", "scale"])
def test_a_stretch_of_another_tensor_is_found(
    ranges: HubRanges, fetch: Fetch, small_twin: Path, at: str
) -> None:
    path = fetch(ranges).path
    assert unlike(path, small_twin) == ()
    header = read_header(path)
    stem = f"{PREFIX}.1.mlp.shared_expert.down_proj"
    info = header.tensors[f"{stem}.{'fp8_scale_inv' if at == 'scale' else 'fp8_weight'}"]
    begin = header.data_offset + info.begin
    length = info.size_bytes if at == "scale" else info.size_bytes * 6 // 10
    if at == "weight_end":
        begin += info.size_bytes - length
    content = bytearray(path.read_bytes())
    content[begin : begin + length] = content[begin : begin + length][::-1].translate(
        bytes((7 * code + 11) % 120 for code in range(256))
    )
    path.write_bytes(content)
    assert unlike(path, small_twin) == (f"{stem}.fp8_weight",)


def test_only_headers_and_needed_tensors_are_fetched(
    ranges: HubRanges, fetch: Fetch, fp8_twin: Path, small_twin: Path, double: HubDouble
) -> None:
    double.body_bytes = 0
    fetch(ranges)
    headers = sum(read_header(path).data_offset for path in fp8_twin.glob("*.safetensors"))
    index = (fp8_twin / "model.safetensors.index.json").stat().st_size
    needed = expected_bytes(model_sizes(read_config(small_twin))) + headers + index
    assert needed <= double.body_bytes <= 1.05 * needed


def test_a_hub_that_stays_down_leaves_what_came_and_the_next_try_goes_on(
    ranges: HubRanges, fetch: Fetch, double: HubDouble, tmp_path: Path, small_twin: Path
) -> None:
    double.faults = [Fault("model-00002-of-00002", status=503, times=99, skip=3)]
    with pytest.raises(CheckpointError, match=r"download of .* failed"):
        fetch(ranges)
    assert read_shard(tmp_path / "fp8") is None
    double.faults, double.body_bytes = [], 0
    fetch(ranges)
    assert read_shard(tmp_path / "fp8") is not None
    assert double.body_bytes < 0.7 * expected_bytes(model_sizes(read_config(small_twin)))


def _remove(tensors: dict[str, TensorData]) -> None:
    del tensors[f"{PREFIX}.0.mlp.shared_expert.gate_proj.weight_scale_inv"]


def _add(tensors: dict[str, TensorData]) -> None:
    tensors[f"{PREFIX}.4.mlp.shared_expert.gate_proj.weight"] = ("F8_E4M3", (1, 1), b"x")


def _retype(tensors: dict[str, TensorData]) -> None:
    name = f"{PREFIX}.0.mlp.shared_expert.gate_proj.weight"
    tensors[name] = ("F8_E5M2", *tensors[name][1:])


def _reshape(tensors: dict[str, TensorData]) -> None:
    name = f"{PREFIX}.0.mlp.shared_expert.gate_proj.weight"
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape[::-1], data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_remove, "missing: .*layers.0.mlp.shared_expert.gate_proj.weight_scale_inv"),
        (_add, "extra: .*layers.4.mlp.shared_expert.gate_proj.weight"),
        (_retype, r"gate_proj.weight is F8_E5M2 \[256, 128\], expected F8_E4M3"),
        (_reshape, r"gate_proj.weight is F8_E4M3 \[128, 256\], expected F8_E4M3 \[256, 128\]"),
    ],
)
def test_anything_but_the_expected_set_is_fatal_and_named(
    fetch: Fetch,
    fp8_twin: Path,
    tmp_path: Path,
    change: Callable[[dict[str, TensorData]], None],
    said: str,
) -> None:
    with pytest.raises(CheckpointError, match=said):
        fetch(FolderRanges(edited(fp8_twin, tmp_path, change)))
    assert not (tmp_path / "fp8" / SHARD_FILE).exists()


def test_an_overlay_shows_the_shard_beside_the_download(
    ranges: HubRanges, fetch: Fetch, small_twin: Path, tmp_path: Path
) -> None:
    shard = fetch(ranges)
    source = open_folder(small_twin)
    conversion = Conversion(fp8_mode="prebuilt", fp8_origin="lab")
    target = tmp_path / "data" / "m" / "ck" / "hybrid"
    result = build_overlay(source, conversion, target, shard)
    assert result.fp8_layer_count == 12
    assert (target / SHARD_FILE).samefile(shard.path)
    assert set(read_tensors(target)) == set(read_tensors(small_twin)) | set(shard.digests)
    block = json.loads((target / "config.json").read_text())["quantization_config"]["spark_hybrid"]
    assert block["fp8"] == {"mode": "prebuilt", "layers": "shared_expert", "block": [128, 128]}


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FIRST, status=429, retry_after_s=3, skip=1),
        Fault(FIRST, status=503, times=3),
        Fault(FIRST, keep_bytes=70_000, times=2, skip=3),
        Fault(FIRST, keep_bytes=0, times=2, skip=3),
        Fault(FIRST, status=403, skip=3),
    ],
    ids=["busy", "down", "cut", "cut-at-once", "redirect-expired"],
)
def test_what_passes_does_not_show_in_the_shard(
    ranges: HubRanges, fetch: Fetch, double: HubDouble, fp8_twin: Path, fault: Fault
) -> None:
    double.faults = [fault]
    shard = fetch(ranges)
    name = f"{PREFIX}.0.mlp.shared_expert.gate_proj"
    assert tensor_bytes(shard.path.parent, f"{name}.fp8_weight") == tensor_bytes(
        fp8_twin, f"{name}.weight"
    )
    assert fault.times == 0
