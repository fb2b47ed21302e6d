"""Folders that deployments need: made once, for their user alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdeploy.atomic_files import keep_private
from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.cli import main as program
from sparkdeploy.deploy.lock import deploy_lock
from sparkdeploy.deploy.nodes import ClusterRecord
from sparkdeploy.deploy.prepare import prepare_folders
from sparkdeploy.node.tree import Entry, Ledger
from sparkdeploy.plan.container import HostFolders
from sparkdeploy.server.phases import save_durations
from sparkdeploy.settings import Settings, load_settings


def asked(cache: Path, user: str, *, is_public: bool = False) -> SimpleNamespace:
    """As much of a plan of one node as the folders need."""
    folders = HostFolders(cache=cache, key_file=cache / "keys" / "key")
    planned = SimpleNamespace(
        spec=SimpleNamespace(user=user), folders=folders, rank=SimpleNamespace(is_head=True)
    )
    return SimpleNamespace(nodes=(planned,), deployment=SimpleNamespace(is_public=is_public))


def test_a_folder_that_is_right_is_left_alone_also_when_it_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    own = f"{os.getuid()}:{os.getgid()}"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.chmod", refuse)
    prepare_folders(asked(tmp_path, own), None)  # type: ignore[arg-type]


def test_a_key_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    plan = asked(tmp_path, f"{os.getuid()}:{os.getgid()}", is_public=True)
    key = tmp_path / "keys" / "key"
    made = []
    for mode in (0o600, 0o644):
        prepare_folders(plan, None)  # type: ignore[arg-type]
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
        made.append(key.read_text())
        key.chmod(mode)
    prepare_folders(plan, None)  # type: ignore[arg-type]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert made[0] == made[1] == key.read_text()
    assert len(made[0].strip()) >= 32


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def change_something(settings: Settings) -> None:
    with deploy_lock(settings, "down main"):
        pass


def note_hashes(settings: Settings) -> None:
    entry = Entry("f", 0, "1", "")
    Ledger(settings.state_dir, "n").remember({settings.data_dir: (entry, "0")})


WRITERS: dict[str, Callable[[Settings], object]] = {
    "a change": change_something,
    "a pin": lambda settings: HubLock(settings.state_dir).set(
        "a/b", "main", RevisionPin("0" * 40, "")
    ),
    "a start": lambda settings: save_durations(settings.state_dir, "x", {"load": 1.0}),
    "a cluster": lambda settings: ClusterRecord.below(settings.state_dir).note("m", ("a", "b")),
    "hashes": note_hashes,
    "a bug": lambda _settings: program._write_crash_log(),
}


@pytest.mark.parametrize("writer", sorted(WRITERS))
def test_whoever_makes_the_state_folder_makes_it_for_its_user_alone(writer: str) -> None:
    settings = load_settings()
    before = os.umask(0o022)
    try:
        WRITERS[writer](settings)
    finally:
        os.umask(before)
    assert mode(settings.state_dir) == 0o700
    assert settings.cache_dir.exists() is (writer == "a change")
    assert not settings.cache_dir.exists() or mode(settings.cache_dir) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_users_folder_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(0o755)
    os.chown(folder, 61234, 61234)
    keep_private(folder)
    assert mode(folder) == 0o755


@pytest.mark.parametrize(
    ("before", "is_home", "after"),
    [(0o755, False, 0o700), (0o777, False, 0o700), (0o700, False, 0o700), (0o755, True, 0o755)]
    + [(mode, False, mode) for mode in (0o2775, 0o1777)],
)
def test_an_old_folder_of_ours_is_closed_and_one_for_several_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, is_home: bool, after: int
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(before)
    if is_home:
        monkeypatch.setenv("HOME", str(folder))
    keep_private(folder)
    assert mode(folder) == after
