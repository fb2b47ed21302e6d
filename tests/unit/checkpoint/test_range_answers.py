"""An answer to a request for a range is that range, of that file, at that commit, or an error."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy.checkpoint.hub import LONGEST_WAIT_S, Hub, RetryError, is_followed, refuse_offline
from sparkdeploy.checkpoint.ranges import HubRanges, NoPartsError
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile
from sparkdeploy.checkpoint.transfer import FileProgress, WrongContentError
from sparkdeploy.errors import CheckpointError

SHA, COMMIT = "a" * 64, "b" * 40
FILE = RepoFile("m.safetensors", 1000, SHA, None)
SOUND = {
    "Content-Range": "bytes 10-19/1000",
    "Content-Length": "10",
    "X-Repo-Commit": COMMIT,
    "X-Linked-Etag": f'"{SHA}"',
}
OTHERS: dict[str, list[str | None]] = {
    "Content-Range": [
        *("bytes 9-19/1000", "bytes 10-20/1000", "bytes 10-19/1001", "bytes 0-9/1000"),
        *("bytes 10-19/*", "bytes */1000", "items 10-19/1000", "", None),
    ],
    "Content-Length": ["9", "11", "0"],
    "X-Repo-Commit": ["c" * 40, "main", ""],
    "X-Linked-Etag": [f'"{"c" * 64}"', '"x"'],
}


@pytest.fixture
def ranges(tmp_path: Path) -> HubRanges:
    hub = Hub("https://hub.lan", tmp_path, sleep=lambda _seconds: None)
    return HubRanges(hub, RepoFacts("lab/m", "main", COMMIT, None, (FILE,)))


def answer(headers: dict[str, str], status: int = 206) -> Any:
    return SimpleNamespace(status_code=status, headers=headers, history=[])


def test_the_very_range_is_taken(ranges: HubRanges) -> None:
    ranges._check(FILE.name, 10, 20, answer(SOUND))
    # Not every server says more than the range.
    ranges._check(FILE.name, 10, 20, answer({"Content-Range": SOUND["Content-Range"]}))
    ranges._check(FILE.name, 0, 1000, answer({"Content-Length": "1000"}, status=200))


@pytest.mark.parametrize(
    ("header", "value"), [(name, value) for name, values in OTHERS.items() for value in values]
)
def test_another_range_file_or_commit_is_not(
    ranges: HubRanges, header: str, value: str | None
) -> None:
    headers = {**SOUND, header: value} if value is not None else {}
    kind = NoPartsError if header == "Content-Range" else CheckpointError
    with pytest.raises(kind):
        ranges._check(FILE.name, 10, 20, answer(headers))


def test_a_whole_file_is_no_part_of_it(ranges: HubRanges) -> None:
    with pytest.raises(NoPartsError):
        ranges._check(FILE.name, 10, 20, answer({"Content-Length": "10"}, status=200))


@pytest.mark.parametrize("asked", ["86400", "999999999999"])
def test_no_server_makes_a_download_wait_for_long(ranges: HubRanges, asked: str) -> None:
    waits: list[float] = []
    hub = replace(ranges.hub, sleep=waits.append)
    hub.wait_after(1, RetryError("HTTP 429", asked), CheckpointError("x"))
    assert waits == [LONGEST_WAIT_S]
    hub = replace(hub, attempts=9)
    for failures in (1, 2, 3, 8):
        hub.wait_after(failures, RetryError("HTTP 503"), CheckpointError("x"))
    assert waits[1:] == [0.5, 1, 2, LONGEST_WAIT_S]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(ranges: HubRanges, status: int) -> None:
    with pytest.raises(RetryError, match=str(status)):
        ranges._check(FILE.name, 10, 20, answer({}, status=status))


def test_no_redirect_leads_from_https_to_http() -> None:
    assert not is_followed("https://hub.lan/a", "http://hub.lan/a")
    assert is_followed("https://hub.lan/a", "https://other.lan/a")
    assert is_followed("http://hub.lan/a", "http://other.lan/a")


@pytest.mark.parametrize("pieces", [(1001,), (1000, 1), (500, 500, 1)])
def test_no_byte_more_than_the_hub_states_is_taken(pieces: tuple[int, ...]) -> None:
    counted: list[int] = []
    progress = FileProgress(FILE, SimpleNamespace(is_set=lambda: False), counted.append)  # type: ignore[arg-type]
    for piece in pieces[:-1]:
        progress.add(piece)
    with pytest.raises(WrongContentError, match="has more than the 1000 bytes"):
        progress.add(pieces[-1])
    assert sum(counted) == sum(pieces[:-1])


@pytest.mark.parametrize(
    ("value", "is_offline"),
    [*((word, True) for word in ("1", "ON", "on", "yes", "TRUE", "true")), ("0", False)],
)
def test_what_the_hubs_own_tools_call_offline_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, value: str, is_offline: bool
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    refused = pytest.raises(CheckpointError, match="HF_HUB_OFFLINE forbids it")
    with refused if is_offline else contextlib.nullcontext():
        refuse_offline("lab/m")
