"""Fetches the wheels of a lock into a folder, each held against its hash."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import html
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

import requests

from sparkdeploy import atomic_files
from sparkdeploy.bounded_http import BoundedSession, chunks
from sparkdeploy.errors import BuildError
from sparkdeploy.image.index_requests import index_answer
from sparkdeploy.image.lock import find_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from sparkdeploy.image.lock import LockedPackage, PackagePin, WheelPlatform

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1"
TIMEOUT_S = 60
PAGE_LIMIT_S = 120.0
WHEEL_LIMIT_S = 4 * 3600.0
"""Of a whole answer, however much still comes: the largest wheel over a slow line."""
MAX_PAGE_BYTES = 64 << 20
MAX_WHEEL_BYTES = 8 << 30
CHUNK_BYTES = 2**20
AT_A_TIME = 4
_LINK = re.compile(r"""<a\s[^<>]*href=["']([^"'#<]+)#sha256=([0-9a-f]{64})["']""", re.IGNORECASE)
"""A file of a PEP 503 page that states its hash."""


@dataclass(frozen=True, slots=True)
class PackageIndex:
    url: str
    """PEP 503 or 691."""
    setting: str
    """What names another one: a key of config.yaml, or a variable of pip's."""
    packages: frozenset[str] | None = None
    """It is asked for these alone; None for every package."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or self.url


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    folder: Path
    platform: WheelPlatform
    indexes: tuple[PackageIndex, ...]
    """Asked in order."""
    at_hand: tuple[Path, ...] = ()
    """Local folders, looked into before any index is asked."""
    ca_bundle: Path | None = None

    def fetch(
        self, packages: Sequence[LockedPackage], *, on_wheel: Callable[[Path], None]
    ) -> tuple[Path, ...]:
        """Bring one wheel for each package; return their paths. What is there and right is kept.

        Raises BuildError when no index offers a file with a hash of the lock, or what was fetched
        differs from it; nothing unverified stays in the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)

        def bring(package: LockedPackage) -> Path:
            path = find_wheel(package, (self.folder,), self.platform) or self._fetch(package)
            on_wheel(path)
            return path

        with concurrent.futures.ThreadPoolExecutor(max_workers=AT_A_TIME) as pool:
            # The first that fails ends it: `map` cancels what has not begun.
            return tuple(pool.map(bring, packages))

    def _fetch(self, package: LockedPackage) -> Path:
        if (local := find_wheel(package, self.at_hand, self.platform)) is not None:
            return _place(self.folder / local.name, package.hashes, _read(local))
        pin = package.pin
        asked = [
            index
            for index in self.indexes
            if index.packages is None or package.pin.name in index.packages
        ]
        for index in asked:
            for filename, url, sha256 in self._offers(pin, index):
                is_named = self.platform.pin_of(filename) == pin
                if is_named and (not package.hashes or sha256 in package.hashes):
                    chunks = self._download(url, pin, index)
                    return _place(self.folder / filename, {sha256}, chunks)
        raise self._nowhere(package, asked)

    def _nowhere(self, package: LockedPackage, asked: Sequence[PackageIndex]) -> BuildError:
        pin, platform = package.pin, self.platform
        with_hash = " with a hash of the lock" if package.hashes else ""
        hosts = ", ".join(dict.fromkeys(index.host for index in asked))
        # The last one is asked for few packages: it is the one that should have them.
        named = f"`{asked[-1].setting}` names another index; " if asked else ""
        return BuildError(
            f"no index has {pin.name} {pin.version} for {platform.architecture} and Python"
            f" {platform.python}{with_hash} (asked: {hosts or 'none'})",
            hint=f"{named}a folder that has the wheel is named by `wheelhouse` in config.yaml",
        )

    def _offers(self, pin: PackagePin, index: PackageIndex) -> Iterator[tuple[str, str, str]]:
        """Yield name, address and sha256 of each file of a project; nothing for an unknown one."""
        page = f"{index.url.rstrip('/')}/{pin.name}/"
        with self._answer(page, pin, index, PAGE_LIMIT_S) as answer:
            if answer.status_code in {403, 404}:
                return
            answer.raise_for_status()
            text = b"".join(chunks(answer, MAX_PAGE_BYTES)).decode(errors="replace")
            if "json" in answer.headers.get("Content-Type", ""):
                files = json.loads(text)["files"]
                listed = [(it["filename"], it["url"], it["hashes"]["sha256"]) for it in files]
            else:
                links = [(html.unescape(url), it) for url, it in _LINK.findall(text)]
                listed = [
                    (unquote(urlsplit(url).path.split("/")[-1]), url, it) for url, it in links
                ]
        for filename, url, sha256 in listed:
            yield filename, urljoin(page, url), sha256

    def _download(self, url: str, pin: PackagePin, index: PackageIndex) -> Iterator[bytes]:
        with self._answer(url, pin, index, WHEEL_LIMIT_S) as answer:
            answer.raise_for_status()
            yield from chunks(answer, MAX_WHEEL_BYTES, CHUNK_BYTES)

    @contextlib.contextmanager
    def _answer(
        self, url: str, pin: PackagePin, index: PackageIndex, limit_s: float
    ) -> Iterator[requests.Response]:
        """Ask; raise BuildError naming the host when it does not answer, also in the middle."""
        try:
            with (
                BoundedSession(limit_s) as session,
                index_answer(
                    session,
                    url,
                    index.url,
                    headers={"Accept": ACCEPT},
                    timeout=TIMEOUT_S,
                    verify=str(self.ca_bundle or True),
                ) as answer,
            ):
                yield answer
        except (requests.RequestException, json.JSONDecodeError) as error:
            raise BuildError(
                f"{pin.name} {pin.version}: the index at {urlsplit(url).hostname} does not answer",
                detail=str(error),
                hint=f"set https_proxy or `ca_bundle`; `{index.setting}` names another index, and"
                " `wheelhouse` a folder that has the wheel",
            ) from error


def _place(target: Path, hashes: Collection[str], chunks: Iterable[bytes]) -> Path:
    """Write a file that has one of these hashes; without any, whatever comes."""
    digest = hashlib.sha256()
    try:
        with atomic_files.replacing(target, atomic_files.SHARED_FILE_MODE) as stream:
            for chunk in chunks:
                digest.update(chunk)
                stream.write(chunk)
            if hashes and digest.hexdigest() not in hashes:
                raise BuildError(
                    f"{target.name} is not what the lock names: its sha256 is {digest.hexdigest()}",
                    hint="something between here and the index changed it; try another index",
                )
    except OSError as error:
        raise BuildError(
            f"{target} cannot be written: {error.strerror or error}", hint="is the disk full?"
        ) from error
    return target


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        yield from iter(lambda: stream.read(CHUNK_BYTES), b"")
