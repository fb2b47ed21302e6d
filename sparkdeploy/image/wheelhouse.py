"""Fetches the wheels of a lock into a folder, each held against its hash."""

from __future__ import annotations

import concurrent.futures
import hashlib
import html.parser
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import requests

from sparkdeploy.errors import BuildError
from sparkdeploy.image import lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sparkdeploy.image.lock import LockedPackage

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
TIMEOUT_S = 60
CHUNK_BYTES = 2**20
AT_A_TIME = 4


@dataclass(frozen=True, slots=True)
class Source:
    """Where wheels come from: indexes (PEP 503 or 691), asked in order, and local folders."""

    indexes: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    ca_bundle: Path | None = None


@dataclass(frozen=True, slots=True)
class Platform:
    """What the wheels are for."""

    architecture: str
    python: str


@dataclass(frozen=True, slots=True)
class _Offer:
    """A file as an index lists it."""

    filename: str
    url: str
    sha256: str


def fetch_wheels(
    packages: Sequence[LockedPackage],
    folder: Path,
    platform: Platform,
    source: Source,
    *,
    on_wheel: Callable[[Path], None],
) -> tuple[Path, ...]:
    """Bring one wheel for each package; return their paths. What is there and right is kept.

    Raises BuildError when no index offers a file with a hash of the lock, or what was fetched
    differs from it; nothing unverified stays in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def bring(package: LockedPackage) -> Path:
        path = _held(package, (folder,), platform) or _fetch(package, folder, platform, source)
        on_wheel(path)
        return path

    with concurrent.futures.ThreadPoolExecutor(max_workers=AT_A_TIME) as pool:
        running = [pool.submit(bring, package) for package in packages]
        try:
            return tuple(future.result() for future in running)
        finally:
            for future in running:
                future.cancel()


def _fetch(package: LockedPackage, folder: Path, platform: Platform, source: Source) -> Path:
    if (local := _held(package, source.folders, platform)) is not None:
        return _place(folder / local.name, sha256_of(local), _read(local))
    for index in source.indexes:
        for offer in _offers(package.pin.name, index, source):
            if _fits(offer.filename, offer.sha256, package, platform):
                return _place(folder / offer.filename, offer.sha256, _download(offer.url, source))
    raise BuildError(
        f"no index has {package.pin.name} {package.pin.version} for {platform.architecture} and"
        f" Python {platform.python} with a hash of the lock",
        hint="was the lock made from another index? `index_url` in config.yaml names the one asked",
    )


def _held(package: LockedPackage, folders: Iterable[Path], platform: Platform) -> Path | None:
    """Return a wheel of these folders with a hash of the lock."""
    for folder in folders:
        for path in sorted(folder.glob("*.whl")):
            found = lock.wheel_pin(
                path.name, architecture=platform.architecture, python=platform.python
            )
            is_right = found == package.pin and (
                not package.hashes or sha256_of(path) in package.hashes
            )
            if is_right:
                return path
    return None


def _fits(filename: str, sha256: str, package: LockedPackage, platform: Platform) -> bool:
    found = lock.wheel_pin(filename, architecture=platform.architecture, python=platform.python)
    return found == package.pin and (not package.hashes or sha256 in package.hashes)


def _place(target: Path, sha256: str, chunks: Iterable[bytes]) -> Path:
    part, digest = target.with_name(f".{target.name}.part"), hashlib.sha256()
    try:
        with part.open("wb") as stream:
            for chunk in chunks:
                digest.update(chunk)
                stream.write(chunk)
        if digest.hexdigest() != sha256:
            raise BuildError(
                f"{target.name} is not what the lock names: its sha256 is {digest.hexdigest()}",
                hint="something between here and the index changed it; try another index",
            )
        part.replace(target)
    except OSError as error:
        raise BuildError(
            f"{target} cannot be written: {error.strerror or error}", hint="is the disk full?"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def sha256_of(path: Path) -> str:
    """Return the digest of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _download(url: str, source: Source) -> Iterator[bytes]:
    try:
        with _get(url, source, stream=True) as answer:
            yield from answer.iter_content(CHUNK_BYTES)
    except requests.RequestException as error:
        raise _unreachable(url, error) from error


def _offers(name: str, index: str, source: Source) -> Iterator[_Offer]:
    url = f"{index.rstrip('/')}/{name}/"
    try:
        with _get(url, source, stream=False) as answer:
            if "json" in answer.headers.get("Content-Type", ""):
                files = answer.json()["files"]
                listed = [_Offer(f["filename"], f["url"], f["hashes"]["sha256"]) for f in files]
            else:
                page = _Page()
                page.feed(answer.text)
                listed = page.offers
    except requests.HTTPError as error:
        if error.response is not None and error.response.status_code in {403, 404}:
            return
        raise _unreachable(url, error) from error
    except requests.RequestException as error:
        raise _unreachable(url, error) from error
    for offer in listed:
        yield _Offer(offer.filename, urljoin(url, offer.url), offer.sha256)


def _get(url: str, source: Source, *, stream: bool) -> requests.Response:
    answer = requests.get(
        url,
        headers={"Accept": ACCEPT} if not stream else {},
        timeout=TIMEOUT_S,
        stream=stream,
        verify=str(source.ca_bundle) if source.ca_bundle is not None else True,
    )
    answer.raise_for_status()
    return answer


def _unreachable(url: str, error: Exception) -> BuildError:
    return BuildError(
        f"the package index at {urlsplit(url).hostname} does not answer",
        detail=str(error),
        hint="set https_proxy, or `index_url` and `ca_bundle` in config.yaml",
    )


class _Page(html.parser.HTMLParser):
    """A PEP 503 page: one link per file, its hash in the fragment."""

    def __init__(self) -> None:
        super().__init__()
        self.offers: list[_Offer] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link that states its sha256."""
        address = dict(attrs).get("href")
        if tag != "a" or not address:
            return
        url, fragment = urldefrag(address)
        if fragment.startswith("sha256="):
            name = unquote(urlsplit(url).path.rsplit("/", 1)[-1])
            self.offers.append(_Offer(name, url, fragment.removeprefix("sha256=")))
