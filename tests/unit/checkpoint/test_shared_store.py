"""The store that repositories of a hub cache share: the hub's own library makes it for these."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from sparkdeploy.checkpoint.cache import repo_folder
from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.pull import WantedRepository, plan_download, pull, resolve
from sparkdeploy.checkpoint.source import (
    CheckpointSource,
    find_in_hub_cache,
    source_identity,
    unreadable_by,
)
from sparkdeploy.checkpoint.store import find_stored, remove, stored
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import Settings, load_settings
from tests.hub.double import HubDouble, Repo, hub_double, xet_hash_of
from tests.hub.xet import xet_by_get
from tests.unit.checkpoint.conftest import tree

pytestmark = pytest.mark.outside

COMMIT = "1" * 40
TWIN, SISTER = "lab/twin", "lab/sister"
SHARED, OWN = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
STRANGER = 54321


@dataclass(frozen=True)
class Lab:
    """A hub with two repositories that have all large files but one in common, and our side."""

    double: HubDouble
    hub: Hub
    lock: HubLock
    settings: Settings

    @property
    def cache(self) -> Path:
        return self.hub.cache

    def by_library(self, *repos: str) -> None:
        """Download as other programs do."""
        for repo in repos:
            # Of two threads that make the store at once, one takes it for somebody else's folder.
            snapshot_download(
                repo, cache_dir=self.cache, endpoint=self.double.endpoint, max_workers=1
            )

    def pull(self, repo: str) -> Path:
        facts = resolve(self.hub, self.lock, WantedRepository(repo), anew=False)
        download = plan_download(self.hub, self.lock, facts, free_bytes=1 << 60)
        return pull(self.hub, self.lock, download, lambda _done, _total: None)

    def source(self, repo: str = TWIN) -> CheckpointSource:
        found = find_in_hub_cache(repo, "main", self.cache)
        assert found is not None
        return found

    def payload(self, repo: str, name: str) -> Path:
        """The file of the store that has a file's content."""
        digest = xet_hash_of(self.double.repos[repo].commits[COMMIT] / name)
        return self.cache / "blobs" / digest[:2] / digest

    def blob(self, repo: str, name: str) -> Path:
        link = repo_folder(self.cache, repo) / "snapshots" / COMMIT / name
        return (link.parent / link.readlink()).parent.resolve() / link.readlink().name


@pytest.fixture
def lab(small_twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    sister = tmp_path / "sister"
    shutil.copytree(small_twin, sister)
    content = bytearray((sister / OWN).read_bytes())
    content[-1] ^= 1
    (sister / OWN).write_bytes(content)
    with hub_double() as double, xet_by_get():
        for repo, folder in ((TWIN, small_twin), (SISTER, sister)):
            double.repos[repo] = Repo({COMMIT: folder}, {"main": COMMIT}, is_xet=True)
        settings = load_settings()
        hub = Hub(double.endpoint, settings.hub_cache, sleep=lambda _s: None)
        yield Lab(double, hub, HubLock(settings.state_dir), settings)


def damage(path: Path) -> bytes:
    """Change one byte of a file of the store, and return what it was."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content


def test_files_are_followed_into_the_store_and_nothing_else_of_it_is_mounted(lab: Lab) -> None:
    lab.by_library(TWIN, SISTER)
    source = lab.source()
    large = sorted(path.name for path in source.files_dir.glob("*.safetensors"))
    wanted = {lab.payload(TWIN, name) for name in (*large, "tokenizer.json")}
    assert set(source.shared) == wanted
    assert lab.payload(SISTER, OWN) not in source.shared
    assert unreadable_by(source, STRANGER, STRANGER) == ()


def test_a_model_is_the_same_wherever_its_files_lie(lab: Lab) -> None:
    lab.by_library(TWIN)
    before = source_identity(lab.source())
    blob = lab.blob(TWIN, OWN)
    content = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(content)
    mixed = lab.source()
    assert lab.payload(TWIN, OWN) not in mixed.shared
    assert lab.payload(TWIN, SHARED) in mixed.shared
    assert source_identity(mixed) == before


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("../../blobs/c1/secret", "outside the folder|links to nothing"),
        ("../../models--lab--sister/blobs/x", "outside the folder|links to nothing"),
        ("../../../secret", "outside the folder|links to nothing"),
        ("../../blobs/c1/{hash}", "links to nothing"),
        ("{cache}/blobs/{place}", "absolute link"),
        ("../../blobs/{linked}", "not a regular file"),
        ("../../blobs/{folder}", "not a regular file"),
        ("{name}", "leads back to itself"),
    ],
)
def test_a_blob_that_leads_anywhere_else_is_refused(lab: Lab, target: str, said: str) -> None:
    lab.by_library(TWIN)
    (lab.cache.parent / "secret").write_text("the user's own")
    payload, blob = lab.payload(TWIN, SHARED), lab.blob(TWIN, SHARED)
    linked, folder = (lab.cache / "blobs" / "dd" / ("dd" + digit * 62) for digit in "12")
    linked.parent.mkdir()
    linked.symlink_to("../../../secret")
    folder.mkdir()
    parts = {
        "hash": "c1" + "0" * 62,
        "cache": lab.cache,
        "place": f"{payload.parent.name}/{payload.name}",
        "linked": f"dd/{linked.name}",
        "folder": f"dd/{folder.name}",
        "name": blob.name,
    }
    blob.unlink()
    blob.symlink_to(target.format(**parts))
    with pytest.raises(CheckpointError, match=said) as caught:
        lab.source()
    assert SHARED in caught.value.message


def test_ls_counts_what_is_shared_and_rm_frees_what_nobody_else_has(lab: Lab) -> None:
    lab.by_library(TWIN, SISTER)
    whole = sum(path.stat().st_size for path in lab.source().files_dir.iterdir())
    twin, sister = find_stored(TWIN, lab.settings), find_stored(SISTER, lab.settings)
    assert whole <= twin.size_bytes < whole + 100_000
    common = sum(lab.payload(TWIN, n).stat().st_size for n in (SHARED, "tokenizer.json"))
    assert twin.size_bytes - twin.freed_bytes >= common
    remove(twin, lab.settings)
    assert not lab.payload(TWIN, OWN).exists()
    assert lab.payload(SISTER, SHARED).exists()
    assert lab.source(SISTER).shared
    last = find_stored(SISTER, lab.settings)
    assert (last.size_bytes, last.freed_bytes) == (sister.size_bytes, sister.size_bytes)
    remove(last, lab.settings)
    assert not [path for path in (lab.cache / "blobs").rglob("*") if len(path.name) == 64]
    assert list(stored(lab.settings)) == []


def test_a_pull_into_a_cache_of_the_library_brings_nothing_and_verifies(lab: Lab) -> None:
    lab.by_library(TWIN)
    before = {name: state for name, state in tree(lab.cache).items() if not name.startswith(".")}
    lab.double.seen.clear()
    lab.pull(TWIN)
    assert {seen.path for seen in lab.double.seen} == {f"/api/models/{TWIN}/revision/main"}
    after = {name: state for name, state in tree(lab.cache).items() if not name.startswith(".")}
    assert after == before
    assert lab.lock.pins()[TWIN, "main"].is_verified


def test_a_damaged_file_of_the_store_is_left_to_the_others(lab: Lab, small_twin: Path) -> None:
    lab.by_library(TWIN)
    payload = lab.payload(TWIN, SHARED)
    damage(payload)
    damaged = payload.read_bytes()
    before = tree(repo_folder(lab.cache, TWIN))
    snapshot = lab.pull(SISTER)
    assert (snapshot / SHARED).read_bytes() == (small_twin / SHARED).read_bytes()
    assert not lab.blob(SISTER, SHARED).is_symlink()
    assert payload.read_bytes() == damaged
    assert tree(repo_folder(lab.cache, TWIN)) == before


def test_content_of_another_repository_is_not_fetched_twice_without_a_store_either(
    lab: Lab,
) -> None:
    for repo in (TWIN, SISTER):
        lab.double.repos[repo].is_xet = False
    lab.pull(TWIN)
    lab.double.body_bytes = 0
    cut = repo_folder(lab.cache, SISTER) / "blobs" / lab.blob(TWIN, SHARED).name
    cut.parent.mkdir(parents=True)
    cut.write_bytes(b"cut")
    lab.pull(SISTER)
    shared = lab.blob(SISTER, SHARED)
    assert shared.samefile(lab.blob(TWIN, SHARED))
    assert not shared.is_symlink()
    assert lab.double.body_bytes < lab.source(SISTER).files_dir.joinpath(OWN).stat().st_size * 1.1
    before = shared.read_bytes()
    remove(find_stored(TWIN, lab.settings), lab.settings)
    assert shared.read_bytes() == before
    last = find_stored(SISTER, lab.settings)
    assert last.freed_bytes == last.size_bytes


def test_content_of_another_user_is_fetched_and_not_linked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.pull(TWIN)
    monkeypatch.setattr("os.geteuid", lambda: STRANGER)
    lab.pull(SISTER)
    assert not lab.blob(SISTER, SHARED).samefile(lab.blob(TWIN, SHARED))
