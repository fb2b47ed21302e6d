"""Every unit test has its own folders and no network settings of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from sparkdeploy.recipe.load import Library

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
# A busy machine stretches single examples; the suite's own time limit is enough.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture(autouse=True)
def isolated_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point every folder of the user at the test's own."""
    for kind in ("config", "state"):
        monkeypatch.setenv(f"SPARKDEPLOY_{kind.upper()}_DIR", str(tmp_path / kind))
    for kind in ("data", "cache"):
        monkeypatch.setenv(f"SPARKDEPLOY_{kind.upper()}_DIR", str(tmp_path / kind))
    monkeypatch.setenv("SPARKDEPLOY_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture(autouse=True, scope="session")
def swift_disk() -> Iterator[None]:
    """Wait for no disk: what fsync promises shows after a power cut only, and it is slow."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, os.fstat)
        yield


@pytest.fixture
def shipped() -> Library:
    """The recipes of this checkout."""
    return Library((REPOSITORY / "recipes",))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let golden files be written anew."""
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew.")
