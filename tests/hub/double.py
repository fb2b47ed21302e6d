"""The Hugging Face hub as a client sees it, on two local ports: one for the API, one for blobs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.fakes.http_server import HttpServer, serving
from tests.hub.quiet import QuietHandler

CHUNK_BYTES = 1 << 16
COMMIT, REPO = "1" * 40, "lab/other"
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/(.+)")
_TOKEN = re.compile(r"/api/models/([^/]+/[^/]+)/xet-read-token/(.+)")
_XET = re.compile(r"/xet/([0-9a-f]{64})")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(slots=True)
class Fault:
    """What goes wrong, and how often, with requests whose path contains `path`."""

    path: str
    times: int = 1
    status: int | None = None
    """Answer with this status and nothing else."""
    retry_after_s: int | None = None
    keep_bytes: int | None = None
    """Close the connection after this many bytes of the body."""
    stall_s: float = 0.0
    """Say nothing for so long before it is closed, or until `go_on` is set."""
    flip_byte: int | None = None
    """Send the body with this byte changed."""
    garble_from: int | None = None
    """Send other bytes than there are from here on."""
    skip: int = 0
    """Let this many requests through first."""
    headers: dict[str, str] = field(default_factory=dict)
    """What the answer says instead; of an empty value nothing is said."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as a server saw it."""

    server: str
    method: str
    path: str
    byte_range: str | None
    authorization: str | None


@dataclass(slots=True)
class Repo:
    """A repository: folders of files by commit, and branches that name commits."""

    commits: dict[str, Path]
    branches: dict[str, str]
    license: str = "apache-2.0"
    token: str | None = None
    """Who does not send it gets 401, and who sends another one 403."""
    is_xet: bool = False
    """Whether large files are offered as Xet chunks too; tests.hub.xet fetches these by hash."""


@dataclass(slots=True)
class HubDouble:
    """Both servers, what they serve, and what they saw."""

    repos: dict[str, Repo] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    body_bytes: int = 0
    """Bytes of file contents and listings that were sent."""
    delay_s: float = 0.0
    """A pause after each chunk of a blob, so that a test can interrupt."""
    bytes_per_s: float | None = None
    """What one connection takes of a file; None for as fast as it goes."""
    most_at_once: int = 0
    """Bodies of files that were on their way at the same time."""
    endpoint: str = ""
    blobs: str = ""
    is_held: threading.Event = field(default_factory=threading.Event)
    """Set while a blob is held back, as `hold_after` asked."""
    go_on: threading.Event = field(default_factory=threading.Event)
    _hold_after_bytes: int | None = None
    _on_their_way: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold_after(self, sent_bytes: int) -> None:
        """Stop in the middle of a body after so many bytes in all, until `go_on` is set."""
        self.is_held.clear()
        self.go_on.clear()
        self._hold_after_bytes = sent_bytes

    def wait_if_held(self) -> None:
        """Called after each chunk."""
        if self._hold_after_bytes is not None and self.body_bytes >= self._hold_after_bytes:
            self._hold_after_bytes = None
            self.is_held.set()
            self.go_on.wait(60)

    def take_fault(self, path: str) -> Fault | None:
        """The first fault for a path that is not used up."""
        with self._lock:
            for fault in self.faults:
                if fault.path not in path or not fault.times:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def by_xet_hash(self, xet_hash: str) -> Path:
        """The file that the store of Xet chunks knows by this name."""
        files = (
            path
            for repo in self.repos.values()
            for folder in repo.commits.values()
            for path in folder.rglob("*")
            if repo.is_xet and path.is_file() and is_lfs(path)
        )
        return next(path for path in files if xet_hash_of(path) == xet_hash)

    @contextlib.contextmanager
    def on_its_way(self) -> Iterator[None]:
        """Count a body as one of those that are sent at the same time."""
        with self._lock:
            self._on_their_way += 1
            self.most_at_once = max(self.most_at_once, self._on_their_way)
        try:
            yield
        finally:
            with self._lock:
                self._on_their_way -= 1

    def count(self, sent_bytes: int) -> None:
        """Add to the bytes that were sent."""
        with self._lock:
            self.body_bytes += sent_bytes


def publish(hub: HubDouble, folder: Path, repo: str = REPO) -> None:
    """Serve a folder as a repository, under a tag and its commit: it has no `main`."""
    hub.repos[repo] = Repo({COMMIT: folder}, {"v1": COMMIT})


@contextlib.contextmanager
def hub_double() -> Iterator[HubDouble]:
    """Serve an empty hub; the blobs are on another host name, as they are in the real one."""
    double = HubDouble()
    hub, blobs = (_Server(double, name) for name in ("hub", "blobs"))
    with serving(hub), serving(blobs):
        double.endpoint, double.blobs = hub.url, f"http://localhost:{blobs.port}"
        try:
            yield double
        finally:
            double.go_on.set()


def is_lfs(path: Path) -> bool:
    """Large files live outside git, as .gitattributes of the real hub says."""
    return path.suffix == ".safetensors" or path.name == "tokenizer.json"


def sha256_of(path: Path) -> str:
    """A file's sha256, remembered as long as the file does not change."""
    status = path.stat()
    return _sha256(path, status.st_mtime_ns, status.st_size)


def xet_hash_of(path: Path) -> str:
    """What the store of Xet chunks calls a content: no sha256 of it, and the same everywhere."""
    return hashlib.sha256(b"xet" + sha256_of(path).encode()).hexdigest()


@lru_cache(maxsize=256)
def _sha256(path: Path, _changed_ns: int, _size_bytes: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob_sha1(path: Path) -> str:
    """The name git gives a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Server(HttpServer):
    def __init__(self, double: HubDouble, name: str) -> None:
        super().__init__(_Handler)
        self.double, self.called = double, name


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    server: _Server

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._answer()

    def do_GET(self) -> None:
        """Answer with a body."""
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        headers = self.headers
        self.server.double.seen.append(
            Seen(self.server.called, self.command, path, headers["Range"], headers["Authorization"])
        )
        fault = self.server.double.take_fault(path)
        if fault is not None and fault.status is not None:
            extra = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
            self._send(fault.status, b"no", extra)
        elif self.server.called == "blobs":
            self._blob(path, fault)
        elif tree := _TREE.fullmatch(path):
            self._tree(tree[1], tree[2])
        elif token := _TOKEN.fullmatch(path):
            self._xet_token(token[1], token[2])
        elif api := _API.fullmatch(path):
            self._listing(api[1], api[2] or "main")
        elif resolve := _RESOLVE.fullmatch(path):
            self._resolve(resolve[1], resolve[2], resolve[3], fault)
        else:
            self._send(404, b"nothing here")

    def _repo(self, name: str, revision: str) -> tuple[Repo, str] | None:
        repo = self.server.double.repos.get(name)
        if repo is None:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        if repo.token is not None and self.headers["Authorization"] != f"Bearer {repo.token}":
            status = 403 if self.headers["Authorization"] else 401
            message = "Access to this model is restricted"
            self._send(status, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": message})
            return None
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return None
        return repo, commit

    def _listing(self, name: str, revision: str) -> None:
        found = self._repo(name, revision)
        if found is None:
            return
        repo, commit = found
        folder = repo.commits[commit]
        content = {
            "_id": "1",
            "id": name,
            "modelId": name,
            "sha": commit,
            "private": False,
            "gated": "manual" if repo.token else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [f"license:{repo.license}"],
            "cardData": {"license": repo.license},
            "siblings": [_sibling(folder, path) for path in _files(folder)],
        }
        self._send_json(content)

    def _tree(self, name: str, revision: str) -> None:
        found = self._repo(name, revision)
        if found is None:
            return
        repo, commit = found
        folder = repo.commits[commit]
        self._send_json([_tree_entry(folder, path, repo) for path in _files(folder)])

    def _send_json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.server.double.count(len(body))
        self._send(200, body, {"Content-Type": "application/json"})

    def _xet_token(self, name: str, revision: str) -> None:
        if self._repo(name, revision) is not None:
            said = {
                "X-Xet-Cas-Url": self.server.double.blobs,
                "X-Xet-Access-Token": "of-the-xet-store",
                "X-Xet-Token-Expiration": str(int(time.time()) + 3600),
            }
            self._send(200, b"{}", said)

    def _resolve(self, name: str, revision: str, file: str, fault: Fault | None) -> None:
        found = self._repo(name, revision)
        if found is None:
            return
        repo, commit = found
        path = repo.commits[commit] / file
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        headers = {"X-Repo-Commit": commit}
        if is_lfs(path):
            digest = sha256_of(path)
            headers["X-Linked-Etag"] = f'"{digest}"'
            headers["X-Linked-Size"] = str(path.stat().st_size)
            headers["Location"] = f"{self.server.double.blobs}/{name}/{commit}/{file}"
            if repo.is_xet:
                route = f"{self.server.double.endpoint}/api/models/{name}/xet-read-token/{commit}"
                headers |= {"X-Xet-Hash": xet_hash_of(path), "X-Xet-Refresh-Route": route}
            self._send(302, b"", _changed(headers, fault))
        else:
            headers["ETag"] = f'"{git_blob_sha1(path)}"'
            self._send_file(path, headers, fault)

    def _blob(self, path: str, fault: Fault | None) -> None:
        if xet := _XET.fullmatch(path):
            self._send_file(self.server.double.by_xet_hash(xet[1]), {}, fault)
            return
        organisation, name, commit, file = path.lstrip("/").split("/", 3)
        repo = self.server.double.repos[f"{organisation}/{name}"]
        self._send_file(repo.commits[commit] / file, {"ETag": '"of-the-blob-store"'}, fault)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_file(self, path: Path, headers: dict[str, str], fault: Fault | None) -> None:
        size_bytes = path.stat().st_size
        begin, end = 0, size_bytes
        wanted = _RANGE.fullmatch(self.headers["Range"] or "")
        if wanted:
            begin, end = int(wanted[1]), min(int(wanted[2] or size_bytes - 1) + 1, size_bytes)
            if begin >= size_bytes:
                self._send(416, b"", {"Content-Range": f"bytes */{size_bytes}"})
                return
        self.send_response(206 if wanted else 200)
        if wanted:
            headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{size_bytes}"}
        headers = {**headers, "Content-Length": str(end - begin), "Accept-Ranges": "bytes"}
        for name, value in _changed(headers, fault).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(path, begin, end, fault)

    def _send_body(self, path: Path, begin: int, end: int, fault: Fault | None) -> None:
        position, began_s = begin, time.monotonic()
        stop = end if fault is None or fault.keep_bytes is None else begin + fault.keep_bytes
        sending = self.server.double.on_its_way()
        with path.open("rb") as file, contextlib.suppress(ConnectionError), sending:
            file.seek(begin)
            while position < min(end, stop):
                chunk = bytearray(file.read(min(CHUNK_BYTES, min(end, stop) - position)))
                if fault is not None and fault.flip_byte is not None:
                    at = begin + fault.flip_byte - position
                    if 0 <= at < len(chunk):
                        chunk[at] ^= 0x01
                if fault is not None and fault.garble_from is not None:
                    first = max(0, min(len(chunk), begin + fault.garble_from - position))
                    chunk[first:] = bytes(byte ^ 0x55 for byte in chunk[first:])
                self._wait_for_rate(began_s, position + len(chunk) - begin)
                self.wfile.write(chunk)
                self.server.double.count(len(chunk))
                self.server.double.wait_if_held()
                position += len(chunk)
                if self.server.double.delay_s:
                    time.sleep(self.server.double.delay_s)
        if position < end:
            if fault is not None:
                self.server.double.go_on.wait(fault.stall_s)
            self.close_connection = True

    def _wait_for_rate(self, began_s: float, sent_bytes: int) -> None:
        """Called before a chunk leaves: after the last one nobody would see the wait."""
        if self.server.double.bytes_per_s is not None:
            due_s = began_s + sent_bytes / self.server.double.bytes_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sibling(folder: Path, path: Path) -> dict[str, Any]:
    size_bytes = path.stat().st_size
    entry: dict[str, Any] = {
        "rfilename": str(path.relative_to(folder)),
        "size": size_bytes,
        "blobId": "0" * 40 if is_lfs(path) else git_blob_sha1(path),
    }
    if is_lfs(path):
        entry["lfs"] = {"sha256": sha256_of(path), "size": size_bytes, "pointerSize": 134}
    return entry


def _tree_entry(folder: Path, path: Path, repo: Repo) -> dict[str, Any]:
    entry = _sibling(folder, path)
    large = {"oid": entry["lfs"]["sha256"], **entry["lfs"]} if is_lfs(path) else None
    return {
        "type": "file",
        "path": entry["rfilename"],
        "oid": entry["blobId"],
        "size": entry["size"],
        **({} if large is None else {"lfs": large}),
        **({"xetHash": xet_hash_of(path)} if large is not None and repo.is_xet else {}),
    }


def _changed(headers: dict[str, str], fault: Fault | None) -> dict[str, str]:
    said = {**headers, **(fault.headers if fault is not None else {})}
    return {name: value for name, value in said.items() if value}
