"""A twin to read, and the two places a checkpoint can lie in."""

import hashlib
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.tiny_model.build import build_tiny_fp8_model, build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape

SMALL = TinyShape(vocab=320, experts=2, vision_depth=1)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A twin that no test may change."""
    out = tmp_path_factory.mktemp("twin") / "twin"
    build_tiny_model(out, TinyShape(), seed=1)
    return out


@pytest.fixture(scope="session")
def small_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The least twin there is, for tests that copy it."""
    out = tmp_path_factory.mktemp("small") / "twin"
    build_tiny_model(out, SMALL, seed=1)
    return out


@pytest.fixture(scope="session")
def fp8_twin(small_twin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of FP8 tensors that no test may change."""
    out = tmp_path_factory.mktemp("fp8") / "twin-fp8"
    build_tiny_fp8_model(out, small_twin)
    return out


@pytest.fixture
def folder(small_twin: Path, tmp_path: Path) -> Path:
    """A copy of a twin that a test may damage."""
    copy = tmp_path / "folders" / "twin"
    copy.mkdir(parents=True)
    for file in small_twin.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.fixture
def hub_cache(small_twin: Path, tmp_path: Path) -> Path:
    """A twin as the Hugging Face cache keeps it: blobs, a snapshot of links, and a ref."""
    cache = tmp_path / "hub-cache"
    root = cache / "models--lab--twin"
    snapshot = root / "snapshots" / COMMIT
    for made in (root / "blobs", root / "refs", snapshot):
        made.mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    for file in small_twin.iterdir():
        content = file.read_bytes()
        blob = hashlib.sha256(content).hexdigest()
        (root / "blobs" / blob).write_bytes(content)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob)
    return cache


@pytest.fixture
def lock(tmp_path: Path) -> HubLock:
    return HubLock(tmp_path / "state")


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time of change and content of everything below a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }
