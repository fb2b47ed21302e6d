"""A hub, or whoever stands between it and us, lists what it likes: nothing of ours may change."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.pull import plan_download, pull, resolve
from sparkdeploy.errors import CheckpointError
from tests.hub.hostile import HostileHub, hostile_hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMIT, REPO = "1" * 40, "lab/twin"
PAYLOAD = b"what an attacker wants the victim to hold"
SHA256 = hashlib.sha256(PAYLOAD).hexdigest()


@pytest.fixture
def hostile() -> Iterator[HostileHub]:
    with hostile_hub() as made:
        made.payload = PAYLOAD
        yield made


@pytest.fixture
def hub(hostile: HostileHub, tmp_path: Path) -> Hub:
    cache = tmp_path / "home" / "cache"
    cache.mkdir(parents=True)
    return Hub(hostile.endpoint, cache, sleep=lambda _s: None)


@pytest.fixture
def lock(tmp_path: Path) -> HubLock:
    return HubLock(tmp_path / "state")


def sibling(name: object, **changes: object) -> dict[str, Any]:
    lfs = {"sha256": SHA256, "size": len(PAYLOAD), "pointerSize": 134}
    entry = {"rfilename": name, "size": len(PAYLOAD), "blobId": "0" * 40, "lfs": lfs}
    return {**entry, **changes}


def listing(*siblings: object, **changes: object) -> bytes:
    content = {"id": REPO, "sha": COMMIT, "siblings": siblings, "tags": [], **changes}
    return json.dumps(content).encode()


def fetch(hub: Hub, lock: HubLock) -> Path:
    facts = resolve(hub, lock, REPO, "main", anew=False)
    download = plan_download(hub, lock, facts, free_bytes=1 << 60)
    return pull(hub, lock, download, lambda _done, _total: None)


def canary(folder: Path) -> dict[str, object]:
    """Everything below a folder: kind, mode, where links lead, and every byte."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_ino,
            path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes(),
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("last", [SHA256, "f" * 64], ids=["all right", "one wrong at the end"])
@pytest.mark.parametrize("name", ["../../../victim", "../../../../victim", "{home}/victim"])
def test_a_file_that_a_hub_names_outside_its_snapshot_stays_as_it_is(
    hub: Hub, lock: HubLock, hostile: HostileHub, tmp_path: Path, name: str, last: str
) -> None:
    for folder in (hub.cache, hub.cache.parent):
        (folder / "victim").write_text("the user's own")
    before = canary(tmp_path)
    wrong = {"sha256": last, "size": len(PAYLOAD), "pointerSize": 134}
    hostile.listing = listing(
        sibling(name.format(home=hub.cache.parent)), sibling("z.safetensors", lfs=wrong)
    )
    with pytest.raises(CheckpointError, match=r"^lab/twin: the name of a file, .*victim") as caught:
        fetch(hub, lock)
    assert caught.value.hint
    assert canary(tmp_path) == before
    assert hostile.files_asked == []
