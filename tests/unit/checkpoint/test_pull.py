"""Downloads from a hub of our own, over real HTTP."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from huggingface_hub import close_session

from sparkdeploy.bounded_http import CHUNK_BYTES
from sparkdeploy.checkpoint import hub_client, transfer
from sparkdeploy.checkpoint.hub import ATTEMPTS, Hub
from sparkdeploy.checkpoint.hub_lock import HubLock, find_pinned
from sparkdeploy.checkpoint.pull import Download, WantedRepository, plan_download, pull, resolve
from sparkdeploy.checkpoint.source import find_in_hub_cache
from sparkdeploy.errors import CheckpointError
from tests.hub.double import Fault, HubDouble, Repo, hub_double, xet_hash_of
from tests.hub.xet import xet_by_get

pytestmark = pytest.mark.outside

FIRST, SECOND = "1" * 40, "2" * 40
REPO = "lab/twin"
GIB = 1 << 30


@pytest.fixture
def double(small_twin: Path) -> Iterator[HubDouble]:
    with hub_double() as made:
        made.repos[REPO] = Repo({FIRST: small_twin}, {"main": FIRST})
        yield made


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def hub(double: HubDouble, tmp_path: Path, waits: list[float]) -> Hub:
    return Hub(double.endpoint, tmp_path / "cache", sleep=waits.append)


def download(hub: Hub, lock: HubLock, *, anew: bool = False, free: int = 100 * GIB) -> Download:
    facts = resolve(hub, lock, WantedRepository(REPO), anew=anew)
    return plan_download(hub, lock, facts, free_bytes=free)


def fetch(hub: Hub, lock: HubLock, *, anew: bool = False) -> Path:
    return pull(hub, lock, download(hub, lock, anew=anew), lambda _done, _total: None)


@pytest.fixture
def moved(
    hub: Hub, lock: HubLock, double: HubDouble, small_twin: Path, tmp_path: Path
) -> HubDouble:
    """The first commit is here, and the branch has moved to one with another README."""
    fetch(hub, lock)
    newer = tmp_path / "newer"
    shutil.copytree(small_twin, newer)
    (newer / "README.md").write_text("newer")
    double.repos[REPO] = Repo({FIRST: small_twin, SECOND: newer}, {"main": SECOND})
    return double


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_pull_brings_every_file_as_it_is(hub: Hub, lock: HubLock, small_twin: Path) -> None:
    before = download(hub, lock)
    assert before.missing_bytes == sum(path.stat().st_size for path in small_twin.iterdir())
    assert contents(fetch(hub, lock)) == contents(small_twin)
    found = find_in_hub_cache(REPO, "main", hub.cache)
    assert found is not None
    assert found.revision == FIRST
    pin = lock.pin(REPO, "main")
    assert pin is not None
    assert (pin.is_verified, pin.license) == (True, "apache-2.0")


def test_who_brings_the_same_file_is_waited_for(
    hub: Hub, lock: HubLock, double: HubDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdeploy.checkpoint.transfer.LOCK_LOOK_S", 0.1)
    monkeypatch.setattr("sparkdeploy.checkpoint.ranges.SILENCE_LIMIT_S", 0.5)
    wanted = download(hub, lock)
    file = wanted.facts.files[0]
    name = hub.cache / ".locks" / "models--lab--twin" / f"{file.blob_name}.lock"
    name.parent.mkdir(parents=True)
    other = FileLock(name, thread_local=False)
    other.acquire()
    timer = threading.Timer(2, other.release)
    timer.start()
    double.seen.clear()
    snapshot = pull(hub, lock, wanted, lambda _done, _total: None)
    timer.join()
    assert (snapshot / file.name).is_file()


def test_while_a_file_comes_other_programs_are_kept_from_it(
    hub: Hub, lock: HubLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, taken = transfer._is_in_snapshot, list[str]()

    def try_to_take(progress: transfer.FileProgress, snapshot: Path) -> bool:
        name = f"{progress.file.blob_name}.lock"
        with pytest.raises(Timeout):
            FileLock(hub.cache / ".locks" / "models--lab--twin" / name, timeout=0).acquire()
        taken.append(progress.file.name)
        return look(progress, snapshot)

    monkeypatch.setattr(transfer, "_is_in_snapshot", try_to_take)
    snapshot = fetch(hub, lock)
    assert {*taken} == {path.name for path in snapshot.iterdir()}


def test_a_second_pull_asks_nobody(hub: Hub, lock: HubLock, double: HubDouble) -> None:
    fetch(hub, lock)
    double.seen.clear()
    fetch(hub, lock)
    assert double.seen == []


def test_a_moved_branch_changes_nothing_until_it_is_asked_for(
    hub: Hub, lock: HubLock, moved: HubDouble, small_twin: Path, tmp_path: Path
) -> None:
    assert fetch(hub, lock).name == FIRST
    updated = fetch(hub, lock, anew=True)
    assert updated.name == SECOND
    assert contents(updated) == contents(tmp_path / "newer")
    assert contents(updated.parent / FIRST) == contents(small_twin)


def served(hub: Hub, lock: HubLock) -> str | None:
    """The commit that a deployment would run from now."""
    found = find_pinned(REPO, "main", hub.cache, lock)
    return None if found is None else found.revision


def test_an_update_without_room_leaves_the_model_that_serves(
    hub: Hub, lock: HubLock, moved: HubDouble
) -> None:
    refused = download(hub, lock, anew=True, free=GIB)
    moved.seen.clear()
    with pytest.raises(CheckpointError, match="disk: lab/twin needs"):
        pull(hub, lock, refused, lambda _done, _total: None)
    assert moved.seen == []
    assert served(hub, lock) == FIRST


def test_a_pull_that_was_cut_needs_room_for_the_rest_only(
    hub: Hub, lock: HubLock, double: HubDouble
) -> None:
    name = "model-00001-of-00002.safetensors"
    whole = download(hub, lock)
    double.faults = [
        Fault(f"{FIRST}/{name}", keep_bytes=100_000, skip=1),
        Fault(name, status=503, times=99, skip=1),
    ]
    with pytest.raises(CheckpointError, match=r"download of .* failed"):
        pull(hub, lock, whole, lambda _done, _total: None)
    double.faults = []
    here = sum(path.stat().st_size for path in hub.cache.glob("*/blobs/[!.]*"))
    part = sum(path.stat().st_size for path in hub.cache.glob("*/blobs/.*part"))
    assert part >= CHUNK_BYTES
    rest = download(hub, lock, free=GIB + whole.missing_bytes - here - part)
    assert rest.missing_bytes == whole.missing_bytes - here - part
    pull(hub, lock, rest, lambda _done, _total: None)


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_is_busy_is_asked_again(
    hub: Hub, lock: HubLock, double: HubDouble, waits: list[float], status: int
) -> None:
    double.faults = [
        Fault("/api/models", status=status, retry_after_s=7),
        Fault("/resolve/", status=status, retry_after_s=3, times=2),
    ]
    fetch(hub, lock)
    assert waits == [7, 3, 3]


class WaitedTooOftenError(BaseException):
    """Not an Exception, so that nothing takes it for one of the download's own."""


@pytest.mark.parametrize("is_xet", [False, True], ids=["http", "xet"])
def test_a_file_that_stops_at_the_same_place_is_not_resumed_without_end(
    hub: Hub, lock: HubLock, double: HubDouble, small_twin: Path, *, is_xet: bool
) -> None:
    name = "model-00001-of-00002.safetensors"
    double.repos[REPO].is_xet = is_xet
    places = (f"/lab/twin/{FIRST}/{name}", f"/xet/{xet_hash_of(small_twin / name)}")
    # Some bytes come once, or again with every try of a store that cannot resume; then nothing.
    double.faults = [Fault(places[0], keep_bytes=100_000)]
    double.faults += [Fault(place, keep_bytes=0, times=999) for place in places]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 3 * ATTEMPTS:
            raise WaitedTooOftenError

    with xet_by_get(), pytest.raises(CheckpointError, match=f"download of {name} failed"):
        fetch(replace(hub, sleep=wait), lock)
    assert len(waits) <= ATTEMPTS + 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stall_s", [0, 3600], ids=["closed", "silent"])
def test_a_pull_goes_on_where_it_was_cut(
    hub: Hub, lock: HubLock, double: HubDouble, monkeypatch: pytest.MonkeyPatch, stall_s: int
) -> None:
    monkeypatch.setattr(hub_client, "READ_TIMEOUT_S", 0.5)
    close_session()
    name = "model-00001-of-00002.safetensors"
    double.faults = [Fault(name, keep_bytes=100_000, stall_s=stall_s, skip=1)]
    fetch(hub, lock)
    ranges = [seen.byte_range or "" for seen in double.seen if seen.path.endswith(name)]
    assert any(wanted.startswith(f"bytes={CHUNK_BYTES}-") for wanted in ranges)


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "config.json"])
def test_bytes_that_stay_wrong_are_never_kept(
    hub: Hub, lock: HubLock, double: HubDouble, name: str
) -> None:
    double.faults = [Fault(name, flip_byte=9, times=99)]
    with pytest.raises(CheckpointError, match=f"{name} is not the file"):
        fetch(hub, lock)
    assert not (hub.cache / "models--lab--twin" / "snapshots" / FIRST / name).exists()
    pin = lock.pin(REPO, "main")
    assert pin is not None
    assert not pin.is_verified


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("another", 403)])
def test_closed_repositories_name_the_page_that_opens_them(
    hub: Hub, lock: HubLock, double: HubDouble, token: str | None, status: int
) -> None:
    double.repos[REPO].token = "secret"
    closed = Hub(hub.endpoint, hub.cache, token)
    with pytest.raises(CheckpointError, match=str(status)) as caught:
        fetch(closed, lock)
    assert caught.value.exit_code == 6
    assert f"{double.endpoint}/{REPO}" in (caught.value.hint or "")


def test_a_token_opens_the_hub_and_never_reaches_the_blob_store(
    hub: Hub, lock: HubLock, double: HubDouble
) -> None:
    double.repos[REPO].token = "secret"
    fetch(Hub(hub.endpoint, hub.cache, "secret"), lock)
    heard = {(seen.server, seen.authorization) for seen in double.seen}
    assert heard == {("hub", "Bearer secret"), ("blobs", None)}


def test_a_disk_that_says_nothing_of_its_room_is_not_full(hub: Hub, lock: HubLock) -> None:
    facts = resolve(hub, lock, WantedRepository(REPO), anew=False)
    announced = plan_download(hub, lock, facts, free_bytes=None)
    assert pull(hub, lock, announced, lambda _done, _total: None).is_dir()


def test_names_that_would_share_a_folder_are_refused(hub: Hub, lock: HubLock) -> None:
    for repo in ("lab/twin--a", "lab--twin/a", "lab/../twin"):
        with pytest.raises(CheckpointError, match="hub cache can hold"):
            find_in_hub_cache(repo, "main", hub.cache)


def test_a_pull_that_was_cut_goes_on_at_its_commit(
    hub: Hub, lock: HubLock, double: HubDouble, small_twin: Path
) -> None:
    double.faults = [Fault("model-00002-of-00002.safetensors", status=404, times=99)]
    with pytest.raises(CheckpointError, match="no such repository, revision or file"):
        fetch(hub, lock)
    double.faults = []
    double.repos[REPO] = Repo({FIRST: small_twin, SECOND: small_twin}, {"main": SECOND})
    assert served(hub, lock) is None
    assert fetch(hub, lock).name == FIRST
