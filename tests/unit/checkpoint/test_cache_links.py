"""A cache that other programs and older releases have written to: links in it lead no write out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.source import find_in_hub_cache
from sparkdeploy.errors import CheckpointError
from tests.hub.hostile import HostileHub, hostile_hub
from tests.unit.checkpoint.hostile_listings import (
    COMMIT,
    PAYLOAD,
    REPO,
    SHA256,
    canary,
    fetch,
    listing,
    sibling,
)

pytestmark = pytest.mark.outside

NAME = "sub/model.safetensors"
DAMAGED = b"X" + PAYLOAD[1:]
PART = f".{SHA256}.sparkdeploy-part"


@pytest.fixture
def served() -> Iterator[HostileHub]:
    with hostile_hub() as made:
        made.payload, made.listing = PAYLOAD, listing(sibling(NAME))
        yield made


@pytest.fixture
def hub(served: HostileHub, tmp_path: Path) -> Hub:
    return Hub(served.endpoint, tmp_path / "cache", sleep=lambda _s: None)


@pytest.fixture
def root(hub: Hub) -> Path:
    """The repository's folder in the cache."""
    made = hub.cache / "models--lab--twin"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Files of the user that have the very names a download writes, of another content."""
    folder = tmp_path / "outside"
    (folder / COMMIT / "sub").mkdir(parents=True)
    (folder / "sub").mkdir()
    names = ("main", SHA256, PART, "model.safetensors", "sub/model.safetensors", f"{COMMIT}/{NAME}")
    for name in names:
        (folder / name).write_bytes(DAMAGED)
    return folder


@pytest.mark.parametrize(
    "link", ["blobs", "refs", "snapshots", f"snapshots/{COMMIT}", f"snapshots/{COMMIT}/sub"]
)
def test_a_folder_of_the_cache_that_is_a_link_is_not_written_through(
    hub: Hub, lock: HubLock, root: Path, outside: Path, link: str
) -> None:
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(outside)
    if link == "blobs":
        (outside / SHA256).unlink()
    before = canary(outside)
    with pytest.raises(CheckpointError, match="is a link or a file where a folder must be"):
        fetch(hub, lock)
    assert canary(outside) == before
    pin = lock.pin(REPO, "main")
    assert pin is not None
    assert not pin.is_verified


@pytest.mark.parametrize("place", [f"blobs/{PART}", "refs/main", f"snapshots/{COMMIT}/{NAME}"])
@pytest.mark.parametrize("kind", ["link", "second name", "dangling link", "pipe"])
def test_what_stands_in_the_place_of_a_file_is_replaced_and_its_target_kept(
    hub: Hub, lock: HubLock, root: Path, outside: Path, place: str, kind: str
) -> None:
    planted = root / place
    planted.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "link":
        planted.symlink_to(outside / "main")
    elif kind == "dangling link":
        planted.symlink_to(outside / "new")
    else:
        planted.hardlink_to(outside / "main")
    before = canary(outside)
    snapshot = fetch(hub, lock)
    assert (snapshot / NAME).read_bytes() == PAYLOAD
    assert (root / "refs" / "main").read_text() == COMMIT
    assert canary(outside) == before


@pytest.mark.parametrize("commit", ["../../../outside", "..", "", ".", "/", "\x1b", "x/../.."])
def test_a_branch_that_names_no_snapshot_is_not_followed_out_of_the_cache(
    hub: Hub, root: Path, outside: Path, commit: str
) -> None:
    (root / "snapshots").mkdir()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    (outside / "config.json").write_text("{}")
    assert find_in_hub_cache(REPO, "main", hub.cache) is None
    if commit:
        assert find_in_hub_cache(REPO, commit, hub.cache) is None
