"""Nothing gets its name before it is on the disk, and what dead processes left is removed."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkdeploy.atomic_files import opened_folder, write_private
from sparkdeploy.checkpoint import durable, safetensors
from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.durable import FOREIGN_AGE_S, _machine, copy_range, staging_path
from sparkdeploy.checkpoint.fp8_shard import DONE_FILE, SHARD_FILE, Order, fetch_shard
from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.pull import WantedRepository, plan_download, pull, resolve
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.errors import CheckpointError
from sparkdeploy.image.pins import keep
from sparkdeploy.recipe.image_pins import ImagePin
from sparkdeploy.settings import load_settings
from tests.fakes.checkpoints import ignore, standalone
from tests.fakes.disk import RecordedDisk, record_disk, without_exchange
from tests.hub.double import Repo, hub_double
from tests.hub.xet import xet_by_get

pytestmark = pytest.mark.outside

COMMIT = "1" * 40


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> RecordedDisk:
    return record_disk(monkeypatch)


def create(path: Path) -> None:
    """Make a file that is not there yet, by a rename where there are no hard links."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    with pytest.MonkeyPatch.context() as patch, opened_folder(path.parent) as folder:
        patch.setattr(os, "link", refuse)
        folder.create(f"{path.name}-{len(list(path.parent.iterdir()))}", b"a" * 9000)


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: durable.write_text(path, "a" * 9000),
    "JSON": lambda path: durable.write_json(path, {"a": 1}),
    "tensors": lambda path: safetensors.write_file(path, {"a": ("U8", (2,), b"xy")}),
    "a pin": lambda path: HubLock(path.parent).set("a/b", "main", RevisionPin(COMMIT, "2026")),
    "a tag": lambda _: keep(load_settings(), "a:1", ImagePin(f"a@sha256:{'0' * 64}", "now")),
    "a new file": create,
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
    disk: RecordedDisk, folder: Path, tmp_path: Path, *, is_xet: bool
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


@pytest.fixture(params=["gone", "its parent has not asked"])
def dead(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if request.param == "gone":
            process.wait()
        yield process.pid


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_files_folders_and_links_of_dead_processes_are_removed(tmp_path: Path, dead: int) -> None:
    left = tmp_path / f".m.staging-0a-{_machine()}-{dead}"
    for leave in (
        lambda: left.write_text("half"),
        lambda: (left / "in" / "it").mkdir(parents=True),
        lambda: left.symlink_to(tmp_path),
    ):
        leave()
        staging_path(tmp_path / "m")
        assert names(tmp_path) == set()


def test_those_of_the_living_and_of_other_targets_stay(tmp_path: Path, dead: int) -> None:
    others = {
        f".m.staging-0a-{_machine()}-{os.getppid()}",
        f".m.staging-0a-{_machine()}-{1 << 70}",
        f".other.staging-0a-{_machine()}-{dead}",
        f".m.staging-0a-{_machine()}-{dead}.txt",
        ".m.staging-mine",
        f"m.staging-0a-{_machine()}-{dead}",
    }
    for name in others:
        (tmp_path / name).write_text("")
    made = staging_path(tmp_path / "m")
    assert made != staging_path(tmp_path / "m")
    assert re.fullmatch(rf"\.m\.staging-[0-9a-f]{{16}}-{_machine()}-{os.getpid()}", made.name)
    assert names(tmp_path) == others


def test_another_machines_staging_in_a_shared_folder_is_spared_for_a_week(
    tmp_path: Path, dead: int
) -> None:
    left = tmp_path / f".m.staging-0a-00000000-{dead}"
    left.write_text("half")
    staging_path(tmp_path / "m")
    assert names(tmp_path) == {left.name}
    old_s = left.stat().st_mtime - FOREIGN_AGE_S - 10
    os.utime(left, (old_s, old_s))
    staging_path(tmp_path / "m")
    assert names(tmp_path) == set()


@pytest.mark.parametrize("is_by_kernel", [True, False])
def test_a_part_of_a_file_is_copied_also_where_the_kernel_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_by_kernel: bool
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EXDEV, "across file systems")

    if not is_by_kernel:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(durable, "COPY_BYTES", 7)
    content = bytes(range(100))
    (tmp_path / "old").write_bytes(content)
    with (tmp_path / "old").open("rb") as old, (tmp_path / "new").open("wb") as new:
        copy_range(old.fileno(), new.fileno(), 3, 50)
        copy_range(old.fileno(), new.fileno(), 90, 10)
        with pytest.raises(CheckpointError, match="became shorter while it was copied, at 100"):
            copy_range(old.fileno(), new.fileno(), 99, 2)
    assert (tmp_path / "new").read_bytes() == content[3:53] + content[90:] + content[99:]
