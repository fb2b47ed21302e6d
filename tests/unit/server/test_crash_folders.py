"""How many folders of evidence stay."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from sparkdeploy.deploy import evidence

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_newest_folders_of_evidence_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "write_evidence", lambda *_, **__: None)
    folders = []
    for age_s in range(evidence.KEPT_CRASHES + 3, 0, -1):
        folder = evidence.save_evidence(cast("Any", None), "c", tmp_path, deployment="main")
        os.utime(folder, (1e9 - age_s, 1e9 - age_s))
        folders.append(folder)
    newest = evidence.save_evidence(cast("Any", None), "c", tmp_path, deployment="main")
    assert sorted(tmp_path.iterdir()) == sorted([*folders[-evidence.KEPT_CRASHES + 1 :], newest])
    assert evidence.newest_crash(tmp_path, "main") == newest
