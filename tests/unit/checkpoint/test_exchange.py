"""Folders that take one another's place, and the lock of a build."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkdeploy.authoring.source.change import add_source
from sparkdeploy.checkpoint import durable
from sparkdeploy.checkpoint.durable import only_one
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.settings import load_settings


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(durable, "_exchange", lambda *_: False)
    for text in ("first", "second"):
        staged = durable.staging_path(tmp_path / "m")
        staged.mkdir()
        (staged / "text").write_text(text)
        durable.replace_folder(staged, tmp_path / "m")
        assert (tmp_path / "m/text").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_two_names_change_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a name was given away alone")

    for name in ("m", "staged"):
        (tmp_path / name).mkdir()
    (tmp_path / "staged/new").touch()
    monkeypatch.setattr(Path, "rename", refuse)
    durable.replace_folder(tmp_path / "staged", tmp_path / "m")
    assert (tmp_path / "m/new").exists()
    assert not (tmp_path / "staged").exists()


def test_a_written_file_may_be_read_by_all_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        durable.write_text(tmp_path / "file", "x")
        durable.make_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755


def test_a_second_builder_is_told_and_gives_up_when_its_patience_ends(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        only_one(tmp_path / "lock", "a shard"),
        pytest.raises(CheckpointError, match="a shard"),
        only_one(tmp_path / "lock", "a shard", patience_s=0.0, on_wait=said.append),
    ):
        raise AssertionError("two builders at once")
    assert said == ["waiting for another process that does the same: a shard"]


@pytest.mark.parametrize("change", ["a pin", "a source"])
def test_only_one_changes_what_others_read(
    lock: HubLock, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    settings = load_settings()
    (settings.state_dir / ".git").mkdir(parents=True)
    monkeypatch.setattr(durable, "lock_within", lambda *_: False)
    changes: dict[str, Callable[[], object]] = {
        "a pin": lambda: lock.forget("lab/twin"),
        "a source": lambda: add_source("birds", str(settings.state_dir), None, settings),
    }
    with pytest.raises((CheckpointError, NodeError), match="another process is at the same work"):
        changes[change]()


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "it's a folder" / ("x" * 300)
    with (
        pytest.raises(CheckpointError, match="cannot be opened") as caught,
        only_one(path, "a shard"),
    ):
        raise AssertionError("a lock without a file")
    assert shlex.split(str(caught.value.hint).partition(": ")[2]) == ["ls", "-l", str(path)]
