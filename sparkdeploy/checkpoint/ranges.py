"""Parts of files that lie elsewhere: byte ranges over HTTP, or of a folder."""

from __future__ import annotations

import contextlib
import stat
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sparkdeploy.bounded_http import CHUNK_BYTES
from sparkdeploy.checkpoint import contents
from sparkdeploy.checkpoint.hub import KEPT_HINT, Hub, RetryError, download_failed
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, shown
from sparkdeploy.checkpoint.safetensors import Header, header_from, within_limits
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import open_regular
from sparkdeploy.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from httpx2 import Headers, Response

    from sparkdeploy.checkpoint.durable import Progress

SILENCE_LIMIT_S = 600.0
"""A line that brings less than one piece of a file in that time is as good as dead."""
TELL_EVERY_S = 0.5
"""How often progress is reported, however many connections there are."""


class NoPartsError(CheckpointError):
    """A server that sends files only as a whole."""


class RangeSource(Protocol):
    @property
    def name(self) -> str:
        """What the place is called in errors."""

    def files(self) -> tuple[str, ...]: ...

    def size_bytes(self, file: str) -> int: ...

    def read(self, file: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield exactly the bytes from `begin` up to `end`; CheckpointError when it cannot."""


@dataclass(frozen=True, slots=True)
class FolderRanges:
    folder: Path

    @property
    def name(self) -> str:
        return str(self.folder)

    def files(self) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in self.folder.iterdir() if path.is_file()))

    def size_bytes(self, file: str) -> int:
        try:
            status = (self.folder / file).stat()
        except OSError as error:
            raise CheckpointError(f"{self.folder} has no file {shown(file)}.") from error
        if not stat.S_ISREG(status.st_mode):
            # A pipe would be waited for until somebody writes to it.
            raise CheckpointError(f"{self.folder}: {shown(file)} is no regular file.")
        return status.st_size

    def read(self, file: str, begin: int, end: int) -> Iterator[bytes]:
        with open_regular(self.folder / file) as content:
            content.seek(begin)
            while begin < end:
                chunk = content.read(min(CHUNK_BYTES, end - begin))
                if not chunk:
                    raise CheckpointError(f"{self.folder / file} ends before byte {end}.")
                begin += len(chunk)
                yield chunk


@dataclass(slots=True)
class HubRanges:
    """Files of one commit on a hub, over connections that are kept; any thread may read.

    A broken transfer goes on at its byte. An answer counts only when it is exactly the range that
    was asked for, of a file as long as the hub states, at the commit that was resolved.
    """

    hub: Hub
    facts: RepoFacts
    hint: str = "check that no proxy stands between, or download all: `sparkdeploy checkpoint pull`"
    _places: dict[str, str] = field(default_factory=dict)
    _by_name: dict[str, RepoFile] = field(init=False)

    def __post_init__(self) -> None:
        # A hub may list thousands of files, and every request looks for one.
        self._by_name = {file.name: file for file in self.facts.files}

    @property
    def name(self) -> str:
        return self.facts.repo

    def files(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.facts.files)

    def size_bytes(self, file: str) -> int:
        return self._described(file).size_bytes

    def take_address(self, file: str, url: str) -> None:
        """Ask for a file there first: each redirect takes a round trip, and hubs count them."""
        self._places[file] = url

    def read(self, file: str, begin: int, end: int) -> Iterator[bytes]:
        failures = 0
        while begin < end:
            before = begin
            try:
                for chunk in self._request(file, begin, end):
                    begin += len(chunk)
                    yield chunk
                error = RetryError(f"the connection ended at byte {begin}")
            except RetryError as broken:
                error = broken
            if begin < end:
                # What brings bytes is no failure, however often it breaks.
                failures = 0 if begin > before else failures + 1
                self.hub.wait_after(failures, error, download_failed(self.name, file, error))

    def _request(self, file: str, begin: int, end: int) -> Iterator[bytes]:
        from sparkdeploy.checkpoint.hub_client import open_file  # noqa: PLC0415 - takes 0.3 s

        url = self._places.get(file) or self.hub.url(self.facts.repo, self.facts.commit, file)
        # Not every server cuts small files, so that a whole one is asked for as such.
        byte_range = None if (begin, end) == (0, self.size_bytes(file)) else (begin, end)
        with open_file(self.hub, self.name, file, url, byte_range) as response:
            self._check(file, begin, end, response)
            if response.history:
                self.take_address(file, str(response.url))
            for chunk in response.iter_raw(CHUNK_BYTES):
                if len(chunk) > end - begin:
                    raise CheckpointError(
                        f"{self.name}: the hub sends more of {file} than was asked for."
                    )
                begin += len(chunk)
                yield chunk

    def _check(self, file: str, begin: int, end: int, response: Response) -> None:
        status, headers = response.status_code, response.headers
        if status not in {200, 206} and self._places.pop(file, None) is not None:
            raise RetryError("the redirect has expired")
        self.hub.check_status(self.facts.repo, status, headers, file)
        size_bytes = self.size_bytes(file)
        stated_range = headers.get("Content-Range")
        is_part = status == 206 and stated_range == f"bytes {begin}-{end - 1}/{size_bytes}"
        is_whole = status == 200 and (begin, end) == (0, size_bytes)
        if not is_part and not is_whole:
            raise NoPartsError(
                f"{self.name}: {file} cannot be read in parts (HTTP {status}, Content-Range "
                f"{shown(stated_range)}).",
                hint=self.hint,
            )
        stated = headers.get("Content-Length", "")
        if stated.isdecimal() and int(stated) != end - begin:
            raise CheckpointError(
                f"{self.name}: {file} has {stated} bytes, and the hub states {end - begin}.",
                hint=self.hint,
            )
        first = response.history[0] if response.history else response
        self._check_identity(file, first.headers)

    def _check_identity(self, file: str, headers: Headers) -> None:
        commit = headers.get("X-Repo-Commit", self.facts.commit)
        etag = headers.get("X-Linked-Etag", "").strip('"')
        described = self._described(file)
        if commit != self.facts.commit or (etag and described.sha256 not in (None, etag)):
            raise CheckpointError(f"{self.name}: {file} is not the one of {self.facts.commit}.")

    def _described(self, file: str) -> RepoFile:
        described = self._by_name.get(file)
        if described is None:
            raise CheckpointError(f"{self.name} has no file {shown(file)} at {self.facts.commit}.")
        return described


def read_remote_headers(source: RangeSource, files: Iterable[str]) -> Iterator[tuple[str, Header]]:
    """Each file with its header, one after the other; CheckpointError for too many tensors."""

    def header_of(file: str) -> Header:
        name, size_bytes = f"{source.name}: {file}", source.size_bytes(file)
        return header_from(name, size_bytes, lambda *part: b"".join(source.read(file, *part)))

    return within_limits(source.name, ((file, header_of(file)) for file in files))


def read_config(source: RangeSource) -> dict[str, Any]:
    """config.json of a checkpoint elsewhere; CheckpointError when it is no JSON object."""
    text = _read_whole(source, contents.CONFIG_FILE, contents.CONFIG_LIMIT_BYTES)
    return contents.parse_config(f"{source.name}: {contents.CONFIG_FILE}", text)


def read_generation(source: RangeSource) -> dict[str, Any]:
    """generation_config.json of a checkpoint elsewhere; empty where it has none that is one."""
    file = contents.GENERATION_FILE
    if file not in source.files():
        return {}
    with contextlib.suppress(CheckpointError):
        return contents.parse_config(file, _read_whole(source, file, contents.CONFIG_LIMIT_BYTES))
    return {}


def index_of(source: RangeSource) -> Mapping[str, str]:
    """Every tensor's file: by the index, or by the headers where there is none."""
    if contents.INDEX_FILE in source.files():
        text = _read_whole(source, contents.INDEX_FILE, contents.INDEX_LIMIT_BYTES)
        index = contents.parse_index(f"{source.name}: {contents.INDEX_FILE}", text)
        return dict(index["weight_map"])
    files = [name for name in source.files() if name.endswith(".safetensors")]
    headers = read_remote_headers(source, files)
    return {name: file for file, header in headers for name in header.tensors}


def _read_whole(source: RangeSource, file: str, limit_bytes: int) -> bytes:
    size_bytes = source.size_bytes(file)
    if size_bytes > limit_bytes:
        raise CheckpointError(
            f"{source.name}: {file} has {size_bytes} bytes, more than {limit_bytes}.",
            hint="look at it on the hub; nothing of it was read",
        )
    return b"".join(source.read(file, 0, size_bytes))


@dataclass(slots=True)
class Meter:
    """Adds up what comes; any number of threads may count at the same time."""

    total_bytes: int
    on_progress: Progress
    done_bytes: int = 0
    _last_s: float = field(default_factory=time.monotonic)
    _told_s: float = 0.0
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def require_progress(self, name: str) -> None:
        """Raise CheckpointError for the download of `name` when no data was received for long."""
        if time.monotonic() - self._last_s > SILENCE_LIMIT_S:
            raise CheckpointError(
                f"{name}: no data was received for {format_seconds(SILENCE_LIMIT_S)}.",
                hint=KEPT_HINT,
            )

    def add(self, more_bytes: int) -> None:
        with self._counting:
            self.done_bytes += more_bytes
            self._last_s = time.monotonic()
            if self._last_s - self._told_s >= TELL_EVERY_S or self.done_bytes == self.total_bytes:
                self._told_s = self._last_s
                self.on_progress(self.done_bytes, self.total_bytes)
