"""Names and numbers inside a model's own files: its index, configuration and manifest."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint import hub_client
from sparkdeploy.checkpoint.architecture import architecture_of
from sparkdeploy.checkpoint.contents import INDEX_FILE, parse_index
from sparkdeploy.checkpoint.contents import model_sizes as sizes_of
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.fp8_shard import SHARD_FILE, Order, fetch_shard
from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE, read_manifest
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import FolderRanges, HubRanges, index_of, read_config
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.errors import CheckpointError
from tests.examples import examples
from tests.fakes.checkpoints import facts_in, ignore
from tests.hub.hostile import hostile_hub
from tests.unit.checkpoint.conftest import tree
from tests.unit.checkpoint.hostile_listings import (
    COMMIT,
    REPO,
    hostile_names,
    junk,
    listing,
    plain_names,
    refusal,
    sibling,
)

pytestmark = pytest.mark.outside

MB = 1_000_000
PREBUILT = Conversion(fp8_mode="prebuilt", lm_head="int8", mtp="required", fp8_origin="lab")


@settings(max_examples=examples(300))
@given(files=st.lists(hostile_names | plain_names, max_size=3))
def test_an_index_names_files_of_its_own_folder_or_is_refused(files: list[object]) -> None:
    text = json.dumps({"weight_map": {str(at): file for at, file in enumerate(files)}}).encode()
    error = refusal(lambda: parse_index("the index", text))
    if error is not None:
        assert error.message.startswith("the index ")
        assert error.message.isprintable()
        return
    for file in parse_index("the index", text)["weight_map"].values():
        assert Path("/folder", file).parent == Path("/folder")
        assert file not in {"", ".", ".."}
        assert file.isprintable()


def nested_index() -> bytes:
    return b'{"weight_map": {"a": [' + b"[]," * 10_000_000 + b"[]]}}"


def crowded_index() -> bytes:
    return b'{"weight_map": {' + b'"a":"b",' * 4_000_000 + b'"a":"b"}}'


@pytest.mark.parametrize("made", [nested_index, crowded_index])
def test_an_index_made_to_fill_memory_is_not_parsed(made: Callable[[], bytes]) -> None:
    text = made()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="the index"):
            parse_index("the index", text)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 * MB


numbers = st.sampled_from((0, -1, 10**9, 10**400, 1e308, "../../x", "\x1b[2J", None)) | junk


@pytest.mark.parametrize("file", ["config.json", INDEX_FILE])
def test_a_hub_is_not_asked_for_a_configuration_or_index_of_any_length(
    tmp_path: Path, file: str
) -> None:
    size_bytes = 10 << 40
    with hostile_hub() as hostile:
        hostile.listing = listing(sibling(file, size=size_bytes))
        hub = Hub(hostile.endpoint, tmp_path)
        source = HubRanges(hub, hub.describe(REPO, COMMIT))
        read = read_config if file == "config.json" else index_of
        with pytest.raises(CheckpointError, match=f"{file} has {size_bytes} bytes, more than"):
            read(source)
        assert hostile.files_asked == []


def test_a_model_with_a_file_of_our_name_is_refused_and_not_written_to(
    folder: Path, fp8_twin: Path, tmp_path: Path
) -> None:
    order = Order(sizes_of(json.loads((folder / "config.json").read_text())), "lab")
    shard = fetch_shard(FolderRanges(fp8_twin), order, tmp_path / "store", ignore)
    (folder / SHARD_FILE).write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
    before = (tree(folder), tree(tmp_path / "store"))
    with pytest.raises(CheckpointError, match="cannot be written: File exists"):
        build_overlay(open_folder(folder), PREBUILT, tmp_path / "m" / "ck" / "v2", shard)
    assert (tree(folder), tree(tmp_path / "store")) == before


@pytest.mark.parametrize(
    "digests",
    [{"../victim": "a"}, {"/x": "a"}, {"a" * 300: "a"}, {"a": 3}, [["a", "b"]], None, "x"],
)
def test_a_manifest_of_files_elsewhere_is_none(folder: Path, digests: object) -> None:
    out = folder.parent / "m" / "ck" / "v2"
    build_overlay(open_folder(folder), Conversion(lm_head="int8"), out)
    content = json.loads((out / MANIFEST_FILE).read_text())
    assert read_manifest(out) is not None
    (out / MANIFEST_FILE).write_text(json.dumps({**content, "digests": digests}))
    assert read_manifest(out) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("vocab_size", 10**9), ("hidden_size", 10**9), ("num_experts", 10**9)),
        *(("num_attention_heads", 10**9), ("head_dim", 10**9), ("mtp_num_hidden_layers", 10**7)),
    ],
)
def test_sizes_that_no_model_has_are_refused_where_something_is_computed(
    folder: Path, name: str, value: int
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"][name] = value
    (folder / "config.json").write_text(json.dumps(config))
    works: list[Callable[[], object]] = [
        lambda: facts_in(REPO, FolderRanges(folder)),
        lambda: architecture_of(config),
    ]
    for work in works:
        with pytest.raises(CheckpointError, match=f"config.json: .*{name}"):
            work()


def test_a_hub_on_https_sends_nobody_to_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(302, headers={"Location": "http://hub.test/file"})

    client = hub_client.new_client(transport=httpx2.MockTransport(answer))
    monkeypatch.setattr(hub_client, "get_session", lambda: client)
    hub = Hub("https://hub.test", tmp_path)
    opened = hub_client.open_file(hub, REPO, "file", "https://hub.test/file", None)
    with pytest.raises(CheckpointError, match="which is not followed from https"), opened:
        pass
    assert asked == ["https://hub.test/file"]
