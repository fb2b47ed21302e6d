"""Folders and keys that are given to the container's user."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

from sparkdeploy.deploy.prepare import prepare_folders
from sparkdeploy.plan.container import HostFolders

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def asked(cache: Path, user: str) -> SimpleNamespace:
    """As much of a plan of one node as the folders need."""
    folders = HostFolders(cache=cache, key_file=cache / "key")
    planned = SimpleNamespace(
        spec=SimpleNamespace(user=user), folders=folders, rank=SimpleNamespace(is_head=True)
    )
    return SimpleNamespace(nodes=(planned,), deployment=SimpleNamespace(is_public=False))


def test_a_folder_that_is_right_is_left_alone_also_when_it_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    own = f"{os.getuid()}:{os.getgid()}"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.chmod", refuse)
    prepare_folders(asked(tmp_path, own), None)  # type: ignore[arg-type]
