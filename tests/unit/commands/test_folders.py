"""Folders and keys that are given to the container's user."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sparkdeploy.deploy.prepare import prepare_folders
from sparkdeploy.plan.container import HostFolders

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class _Asked:
    """As much of a plan and of a container as the folders need."""

    def __init__(self, cache: Path, user: str) -> None:
        self.folders = HostFolders(cache=cache, key_file=cache / "key")
        self.user = user
        self.deployment = type("Deployment", (), {"exposure": None})


def test_a_folder_that_is_right_is_left_alone_also_when_it_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    own = f"{os.getuid()}:{os.getgid()}"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.chmod", refuse)
    asked = _Asked(tmp_path, own)
    prepare_folders(asked, asked)  # type: ignore[arg-type]
