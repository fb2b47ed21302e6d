"""A hub, or whoever stands between it and us, lists what it likes: nothing of ours may change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_client import ANSWER_LIMIT_BYTES
from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.checkpoint.pull import WantedRepository, resolve
from sparkdeploy.checkpoint.ranges import HubRanges
from sparkdeploy.errors import CheckpointError
from tests.examples import examples
from tests.hub.hostile import HostileHub, hostile_hub
from tests.unit.checkpoint.hostile_listings import (
    COMMIT,
    PAYLOAD,
    REPO,
    canary,
    fetch,
    listing,
    listings,
    refusal,
    sibling,
)
from tests.unit.program import Run

pytestmark = pytest.mark.outside

MB = 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[HostileHub]:
    with hostile_hub() as made:
        yield made


@pytest.fixture
def hostile(server: HostileHub) -> HostileHub:
    """The server as if it were new."""
    fresh = HostileHub(server.endpoint, payload=PAYLOAD)
    for name in HostileHub.__slots__:
        setattr(server, name, getattr(fresh, name))
    return server


@pytest.fixture
def hub(hostile: HostileHub, tmp_path: Path) -> Hub:
    return hub_in(tmp_path, hostile)


def hub_in(home: Path, hostile: HostileHub) -> Hub:
    """A hub whose cache lies beside files of the user."""
    cache = home / "home" / "cache"
    cache.mkdir(parents=True)
    for folder in (home, home / "home", cache):
        (folder / "victim").write_text("the user's own")
    return Hub(hostile.endpoint, cache, sleep=lambda _s: None, attempts=2)


def read(hub: Hub, lock: HubLock) -> bytes:
    """Read the only file of the repository by range."""
    source = HubRanges(hub, resolve(hub, lock, WantedRepository(REPO), anew=False))
    (file,) = source.files()
    return b"".join(source.read(file, 0, source.size_bytes(file)))


def refuse_a_process(*_arguments: object, **_options: object) -> None:
    raise AssertionError("a process was started")


@settings(max_examples=examples(400))
@given(text=listings(), revision=st.sampled_from(("main", COMMIT, "2" * 40, "../x", "\x1b")))
def test_a_listing_is_read_into_names_that_stay_inside_or_refused(
    server: HostileHub, text: bytes, revision: str
) -> None:
    server.listing, server.listing_headers, server.status = text, {}, 200
    hub = Hub(server.endpoint, Path("/nowhere"), sleep=lambda _s: None, attempts=1)
    error = refusal(lambda: hub.describe(REPO, revision, all_files=True))
    if error is not None:
        assert error.message.isprintable()
        assert len(error.message) < 2000
        assert error.hint
        return
    facts = hub.describe(REPO, revision, all_files=True)
    assert re.fullmatch("[0-9a-f]{40}", facts.commit)
    assert facts.commit == revision or not re.fullmatch("[0-9a-f]{40}", revision)
    assert (facts.license or "").isprintable()
    for file in facts.files:
        place = os.path.normpath(f"/cache/snapshot/{file.name}")
        assert place == f"/cache/snapshot/{file.name}"
        assert file.name.isprintable()
        assert set(file.blob_name) <= set("0123456789abcdef")
        assert all(len(part.encode()) < 256 for part in file.name.split("/"))
    names = {file.name for file in facts.files}
    assert len(names) == len(facts.files) > 0
    assert not names & {str(folder) for name in names for folder in Path(name).parents}


@settings(max_examples=examples(80))
@given(text=listings())
def test_a_hostile_listing_changes_nothing_but_its_own_folder(
    server: HostileHub, text: bytes
) -> None:
    server.listing, server.listing_headers, server.redirect = text, {}, None
    server.payload, server.status = PAYLOAD, 200
    server.files_asked.clear()
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse_a_process)
        home = Path(made)
        hub, lock = hub_in(home, server), HubLock(home / "state")
        before = canary(home)
        error = refusal(lambda: fetch(hub, lock))
        assert error is None or error.message.isprintable()
        after = canary(home)
        if not server.files_asked and not lock.path.exists():
            assert after == before
        folders = (f"models--{REPO.replace('/', '--')}", ".models--", ".locks")
        own = ("state", *(f"home/cache/{name}" for name in folders))
        assert {at: seen for at, seen in after.items() if not at.startswith(own)} == before
        root = hub.cache.resolve() / "models--lab--twin"
        assert all(link.resolve().is_relative_to(root) for link in root.rglob("*"))


def endless() -> bytes:
    return listing(sibling("a"), padding=" " * 40 * MB)


def nested() -> bytes:
    return b'{"sha": ' + b"[" * 3 * MB


def crowded() -> bytes:
    return listing()[:-1] + b', "x": [' + b"{}," * (ANSWER_LIMIT_BYTES // 3 - 100) + b"{}]}"


@pytest.mark.parametrize("made", [endless, nested, crowded])
def test_a_listing_made_to_fill_memory_takes_little_of_it(
    hub: Hub, lock: HubLock, hostile: HostileHub, made: Callable[[], bytes]
) -> None:
    hostile.listing = made()
    tracemalloc.start()
    begin_s = time.process_time()
    try:
        with pytest.raises(CheckpointError):
            fetch(hub, lock)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200 * MB
    assert time.process_time() - begin_s < 10


def lock_entries() -> st.SearchStrategy[object]:
    """Pins as an older release, or a hand, may have left them."""
    wrong: st.SearchStrategy[object] = st.sampled_from(
        ("../../..", "\x1b", "", 3, None, [], {}, ["a"], [{"name": "../x"}])
    )
    file = {"name": "a", "size_bytes": 1, "sha256": "a" * 64, "git_sha1": None}
    files = st.lists(
        st.fixed_dictionaries({key: st.just(value) | wrong for key, value in file.items()})
    )
    return wrong | st.fixed_dictionaries(
        {
            "commit": st.just(COMMIT) | wrong,
            "resolved_at": st.just("2026-01-01") | wrong,
            "license": st.none() | wrong,
            "is_verified": st.booleans() | wrong,
            "files": files | wrong,
        }
    )


@settings(max_examples=examples(300))
@given(entry=lock_entries())
def test_a_lock_file_is_held_to_the_rules_of_a_listing(entry: object) -> None:
    with tempfile.TemporaryDirectory() as made:
        lock = HubLock(Path(made))
        models = {REPO: {"main": entry}}
        lock.path.write_text(json.dumps({"schema": 1, "models": models}))
        error = refusal(lock.pins)
        if error is not None:
            assert str(lock.path) in error.message
            assert error.message.isprintable()
            assert error.hint == "remove it to resolve revisions anew"
            return
        for pin in lock.pins().values():
            assert pin.commit == COMMIT
            assert all(file.name == "a" for file in pin.files)
            assert (pin.license or "").isprintable()


@pytest.mark.parametrize(
    "name", ["lab/twin@../../x", "lab/twin@\udcff", "lab/tw\x1bin", "lab/.", "lab/x.", "lab/é"]
)
def test_a_name_that_no_cache_can_hold_is_refused_before_anybody_is_asked(
    run: Run, hostile: HostileHub, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hostile.endpoint)
    done = run("checkpoint", "pull", name)
    assert done.returncode == 6, done.stderr
    assert (done.stdout + done.stderr).replace("\n", "").isprintable()
    assert hostile.authorizations == []


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "a negative chunk": CHUNKED + b"-5\r\n{}\r\n0\r\n\r\n",
    "a chunk beyond every number": CHUNKED + b"f" * 24 + b"\r\n{}\r\n0\r\n\r\n",
    "no HTTP": b"\x1b]0;x\x07 999\r\n\r\n",
    "an empty label": HEAD.replace(b"200", b"302") + b"Location: http://a..b/\r\n\r\n",
    "a long label": HEAD.replace(b"200", b"302") + b"Location: http://%s.x/\r\n\r\n" % (b"a" * 300),
    "a range that is none": b"HTTP/1.1 206 x\r\nContent-Range: \x1b[31m%s\r\n\r\n" % (b"A" * 30000),
    "a range of many digits": HEAD + b"Content-Range: bytes 0-1/%s\r\n\r\n" % (b"9" * 5000),
}


@pytest.mark.parametrize("place", ["raw_listing", "raw_file"])
@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_breaks_the_rules_of_http_is_an_error_of_the_hub(
    hub: Hub, lock: HubLock, hostile: HostileHub, place: str, answer: bytes
) -> None:
    hostile.listing = listing(sibling("model.safetensors"))
    setattr(hostile, place, lambda: [answer])
    with pytest.raises(CheckpointError) as caught:
        fetch(hub, lock)
    said = f"{caught.value.message} {caught.value.hint} {caught.value.detail}"
    assert said.isprintable()
    assert len(said) < 2000


def forever(begin: bytes, more: bytes, pause_s: float = 0.0) -> Iterator[bytes]:
    """An answer that goes on until nobody listens, or the test has ended."""
    yield begin
    while not ENDED.is_set():
        yield more
        time.sleep(pause_s)


ENDED = threading.Event()


@pytest.fixture
def ended() -> Iterator[None]:
    """A download that was given up leaves its thread in the connection, which ends here."""
    ENDED.clear()
    yield
    ENDED.set()


ENDLESS = {
    "trailers": lambda: forever(CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 5000),
    "slow headers": lambda: forever(HEAD, b"a", 0.01),
    "a slow body": lambda: forever(HEAD + b"Content-Length: 1000000\r\n\r\n", b" ", 0.01),
}


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS)
def test_a_download_of_which_nothing_comes_any_more_ends(
    hub: Hub,
    lock: HubLock,
    hostile: HostileHub,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[], Iterator[bytes]],
) -> None:
    monkeypatch.setattr("sparkdeploy.checkpoint.ranges.SILENCE_LIMIT_S", 0.2)
    monkeypatch.setattr("sparkdeploy.checkpoint.threads.PATIENCE_S", 0.1)
    hostile.listing, hostile.raw_file = listing(sibling("model.safetensors")), answer
    begin_s = time.monotonic()
    with pytest.raises(
        CheckpointError, match=r"no data was received|download of .* failed|is not the one"
    ):
        fetch(hub, lock)
    assert time.monotonic() - begin_s < 10


@pytest.mark.parametrize("token", ["hf_\u202esecret", "hf_sec\nret", "hf_sec\tret", "hf_é"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_printed(
    run: Run, hostile: HostileHub, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hostile.endpoint)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    done = run("checkpoint", "pull", REPO)
    assert done.returncode == 6, done.stderr
    assert "token holds what no HTTP header can" in done.stderr
    assert "hf_" not in done.stderr + done.stdout
    assert hostile.authorizations == []


@pytest.mark.parametrize(
    "endpoint",
    ["file:///etc/passwd", "ftp://hub.test", "hub.test", "http://", "http://a..b", "http://[x"],
)
@pytest.mark.parametrize("setting", ["HF_ENDPOINT", "SPARKDEPLOY_HUB"])
def test_an_address_that_no_hub_has_is_refused_without_a_try(
    run: Run, monkeypatch: pytest.MonkeyPatch, setting: str, endpoint: str
) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setenv(setting, endpoint)
    monkeypatch.setattr(Hub, "describe", refuse_a_process)
    done = run("checkpoint", "pull", REPO)
    assert done.returncode == 6, done.stderr
    assert setting in done.stderr
    assert endpoint in done.stderr


def test_pins_that_could_not_be_read_again_are_not_written(lock: HubLock) -> None:
    lock.set(REPO, "main", RevisionPin(COMMIT, "2026"))
    with pytest.raises(CheckpointError, match="would be larger than 16 MiB"):
        lock.set(REPO, "dev", RevisionPin(COMMIT, "2" * (17 << 20)))
    assert lock.pin(REPO, "main") == RevisionPin(COMMIT, "2026")
    assert lock.pin(REPO, "dev") is None


def test_a_compressed_listing_is_not_unpacked(hub: Hub, lock: HubLock, hostile: HostileHub) -> None:
    hostile.listing_headers = {"Content-Encoding": "gzip"}
    with pytest.raises(CheckpointError, match="the body is encoded as 'gzip'"):
        fetch(hub, lock)
