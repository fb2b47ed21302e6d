"""Content is on the disk before it gets its name, wherever a power cut must not show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.atomic_files import write_private
from sparkdeploy.checkpoint import durable, safetensors
from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.fp8_shard import DONE_FILE, SHARD_FILE, Order, fetch_shard
from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.pull import WantedRepository, plan_download, pull, resolve
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder
from tests.fakes.checkpoints import ignore, standalone
from tests.fakes.disk import RecordedDisk, record_disk, without_exchange
from tests.hub.double import Repo, hub_double
from tests.hub.xet import xet_by_get

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.outside

COMMIT = "1" * 40


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> RecordedDisk:
    return record_disk(monkeypatch)


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: durable.write_text(path, "a" * 9000),
    "JSON": lambda path: durable.write_json(path, {"a": 1}),
    "tensors": lambda path: safetensors.write_file(path, {"a": ("U8", (2,), b"xy")}),
    "a pin": lambda path: HubLock(path.parent).set("a/b", "main", RevisionPin(COMMIT, "2026")),
    "a private file": lambda path: write_private(path, "a" * 9000, is_durable=True),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(
    disk: RecordedDisk, tmp_path: Path, kind: str
) -> None:
    for _ in range(2):
        WRITERS[kind](tmp_path / "made")
    assert len(disk.renamed) == 2
    assert (disk.early, disk.unsynced_folders) == ([], {})


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_and_all_it_holds_is_synced_before_it_has_its_name(
    disk: RecordedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_exchange: bool
) -> None:
    if not can_exchange:
        without_exchange(monkeypatch)
    for number in range(2):
        with durable.staged_folder(tmp_path / "m") as staging:
            durable.write_text(staging / "config.json", str(number))
            durable.copy_file(staging / "config.json", staging / "copy.json")
    assert (tmp_path / "m" / "copy.json").read_text() == "1"
    assert disk.renamed.count("m") == 2
    assert (disk.early, disk.unsynced_folders) == ([], {})


@pytest.mark.parametrize("is_xet", [False, True], ids=["http", "xet"])
def test_a_download_is_synced_before_its_blob_has_its_name(
    disk: RecordedDisk,
    folder: Path,
    tmp_path: Path,
    *,
    is_xet: bool,
) -> None:
    with hub_double() as double, xet_by_get():
        double.repos["lab/twin"] = Repo({COMMIT: folder}, {"main": COMMIT}, is_xet=is_xet)
        hub, lock = Hub(double.endpoint, tmp_path / "cache"), HubLock(tmp_path / "state")
        facts = resolve(hub, lock, WantedRepository("lab/twin"), anew=False)
        pull(hub, lock, plan_download(hub, lock, facts, free_bytes=1 << 40), ignore)
    assert {file.blob_name for file in facts.files} <= set(disk.renamed)
    # Notes of the hub's own library are its own.
    assert [name for name in disk.early if not name.startswith(".huggingface")] == []


def test_prepared_checkpoints_are_synced_before_they_have_their_names(
    disk: RecordedDisk, folder: Path, fp8_twin: Path, tmp_path: Path
) -> None:
    order = Order(model_sizes(read_config(folder)), "lab", model=folder)
    shard = fetch_shard(FolderRanges(fp8_twin), order, tmp_path / "store", ignore)
    assert disk.renamed.index(SHARD_FILE) < disk.renamed.index(DONE_FILE)
    conversion = Conversion(lm_head="int8")
    build_overlay(open_folder(folder), conversion, tmp_path / "m" / "ck" / "v2")
    standalone(open_folder(folder), shard, tmp_path / "out")
    assert {"v2", "out"} <= set(disk.renamed)
    assert MANIFEST_FILE in disk.renamed
    assert (disk.early, disk.unsynced_folders) == ([], {})
