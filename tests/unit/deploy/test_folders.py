"""Folders and keys that are given to the container's user."""

from __future__ import annotations

import os
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING

from sparkdeploy.deploy.prepare import prepare_folders
from sparkdeploy.plan.container import HostFolders

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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
