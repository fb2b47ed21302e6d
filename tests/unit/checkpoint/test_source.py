"""Sources: the Hugging Face cache as it is, folders as they are, and who can read them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.source import (
    CheckpointSource,
    fetch_command,
    find_in_hub_cache,
    open_folder,
    source_identity,
    unreadable_by,
)
from sparkdeploy.errors import CheckpointError
from tests.unit.checkpoint.conftest import COMMIT
from tests.unit.program import Run

_STRANGER = 4242
_SHARD = "model-00001-of-00002.safetensors"


def _cached(hub_cache: Path) -> CheckpointSource:
    source = find_in_hub_cache("lab/twin", None, hub_cache)
    assert source is not None
    return source


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_cached_model_is_found_by_branch_and_by_commit(
    hub_cache: Path, revision: str | None
) -> None:
    source = find_in_hub_cache("lab/twin", revision, hub_cache)
    assert source is not None
    assert source.revision == COMMIT
    assert source.root == hub_cache / "models--lab--twin"
    assert source.files_dir == source.root / "snapshots" / COMMIT
    assert source.mount_name == "models--lab--twin"


@pytest.mark.parametrize(("repo", "revision"), [("lab/other", None), ("lab/twin", "v2")])
def test_a_model_that_is_not_cached_is_not_found(
    hub_cache: Path, repo: str, revision: str | None
) -> None:
    assert find_in_hub_cache(repo, revision, hub_cache) is None


def test_a_folder_that_links_out_of_itself_is_refused(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.safetensors"
    (folder / _SHARD).rename(outside)
    (folder / _SHARD).symlink_to(outside)
    with pytest.raises(CheckpointError, match="outside the folder"):
        open_folder(folder)


def test_two_folders_of_one_name_get_mounts_of_their_own(folder: Path, twin: Path) -> None:
    first, second = open_folder(folder), open_folder(twin)
    assert first.name == second.name == "twin"
    assert first.mount_name != second.mount_name
    assert first.mount_name.startswith("local--twin-")


def test_the_fetch_command_pins_the_revision_and_quotes() -> None:
    assert fetch_command("org/name", None) == "sparkdeploy checkpoint pull org/name"
    assert fetch_command("org/name", "a b") == "sparkdeploy checkpoint pull 'org/name@a b'"


def test_the_identity_of_a_cached_model_is_its_blobs_and_not_their_times(hub_cache: Path) -> None:
    source = _cached(hub_cache)
    before = source_identity(source)
    os.utime((source.files_dir / _SHARD).resolve(), (1, 1))
    assert source_identity(source) == before
    (source.files_dir / _SHARD).unlink()
    (source.files_dir / _SHARD).symlink_to((source.files_dir / "config.json").readlink())
    assert source_identity(source) != before


def test_the_identity_of_a_folder_changes_with_a_file(folder: Path) -> None:
    source = open_folder(folder)
    before = source_identity(source)
    assert source_identity(source) == before
    os.utime(folder / _SHARD, (1, 1))
    assert source_identity(source) != before


def test_an_absolute_link_is_refused_because_no_container_can_follow_it(folder: Path) -> None:
    (folder / _SHARD).rename(folder / "moved.safetensors")
    (folder / _SHARD).symlink_to(folder / "moved.safetensors")
    with pytest.raises(CheckpointError, match="absolute link"):
        open_folder(folder)


def test_a_file_of_mode_0600_is_named_for_a_stranger_and_not_for_its_owner(folder: Path) -> None:
    (folder / _SHARD).chmod(0o600)
    source = open_folder(folder)
    owner = (folder / _SHARD).stat()
    assert unreadable_by(source, _STRANGER, _STRANGER) == (folder / _SHARD,)
    assert unreadable_by(source, owner.st_uid, owner.st_gid) == ()
    (folder / _SHARD).chmod(0o640)
    assert unreadable_by(source, _STRANGER, _STRANGER) == (folder / _SHARD,)
    assert unreadable_by(source, _STRANGER, owner.st_gid) == ()


@pytest.mark.parametrize("closed", [".", "blobs", "snapshots", f"snapshots/{COMMIT}"])
def test_a_closed_folder_on_the_way_is_named_once(hub_cache: Path, closed: str) -> None:
    source = _cached(hub_cache)
    (source.root / closed).chmod(0o700)
    assert unreadable_by(source, _STRANGER, _STRANGER) == (source.root / closed,)


@pytest.mark.parametrize("command", [("new", "mine", "--model"), ("checkpoint", "verify")])
def test_a_folder_that_this_user_may_not_look_into_is_named(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    closed = folder / "closed"
    closed.mkdir()
    scandir = os.scandir

    def refusing(path: str) -> object:
        if str(path) == str(closed):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    done = run(*command, str(folder))
    assert done.returncode == 4
    assert f"{closed} cannot be read by this user" in done.stderr
