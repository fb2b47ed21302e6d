"""What goes into the file of a bug report when not everything can be seen."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.evidence import ROOT_CAUSE
from sparkdeploy.upkeep.diagnose import diagnose

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def machine_without_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("config", "state", "data", "cache"):
        monkeypatch.setenv(f"SPARKDEPLOY_{kind.upper()}_DIR", str(tmp_path / kind))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def crash(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "crashes" / "main-20261121T101112Z"
    folder.mkdir(parents=True)
    (folder / ROOT_CAUSE).write_text("memory_floor: the guard")
    return folder


def packed(path: Path) -> set[str]:
    with tarfile.open(path) as tar:
        return set(tar.getnames())


@pytest.mark.parametrize("by", ["name", "folder's name", "path"])
def test_a_crash_is_packed_although_docker_and_the_recipe_are_broken(
    crash: Path, tmp_path: Path, by: str
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text("default_recipe: none-such\n")
    subject = {"name": "main", "folder's name": crash.name, "path": str(crash)}[by]

    bundle = diagnose(subject, tmp_path / "report.tar.gz")

    assert bundle.root_cause == "memory_floor: the guard"
    assert packed(bundle.path) >= {f"crash/{ROOT_CAUSE}", "doctor.json", "status.json"}


def test_a_bundle_can_be_looked_at_with_cat(crash: Path, tmp_path: Path) -> None:
    (crash / ROOT_CAUSE).write_text("exception: \x1b]0;gone\x07\u202e")
    (crash / "x\x1b[2J").write_text("\x9b2J")

    bundle = diagnose("main", tmp_path / "report.tar.gz")

    assert bundle.files["crash/x\\x1b[2J"] == len("\\x9b2J")
    with tarfile.open(bundle.path) as tar:
        cause = tar.extractfile(f"crash/{ROOT_CAUSE}")
        assert cause is not None
        assert cause.read() == b"exception: \\x1b]0;gone\\x07\\u202e"
