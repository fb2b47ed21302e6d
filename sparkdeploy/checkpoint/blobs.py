"""Files of a repository into the hub's cache, going on at the byte where an earlier try ended.

The hub's own library begins a file anew when its process was killed (huggingface_hub 2.4), and
leaves what it had; a shard has gigabytes. The layout of the cache is the library's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.checkpoint.hub import RepoFile
    from sparkdeploy.checkpoint.ranges import HubRanges


def bring_blob(
    source: HubRanges, file: RepoFile, snapshot: Path, on_bytes: Callable[[int], None]
) -> None:
    """Bring a file to its place in `snapshot`, which is <cache>/models--ORG--NAME/snapshots/COMMIT.

    `on_bytes` gets the bytes that are there since it was called last, the first time those of an
    earlier try. What is wrong with the content is for the caller to find out.
    """
    blob = snapshot.parent.parent / "blobs" / _blob_name(source.name, file)
    if not _has_size(blob, file.size_bytes):
        _fetch(source, file, blob, on_bytes)
    place = snapshot / file.name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(os.path.relpath(blob, place.parent))


def bytes_to_come(repo: str, file: RepoFile, snapshot: Path) -> int:
    """What `bring_blob` would fetch: nothing of a blob that is there, and the rest of a part."""
    blob = snapshot.parent.parent / "blobs" / _blob_name(repo, file)
    if _has_size(blob, file.size_bytes):
        return 0
    part = _part_of(blob)
    return file.size_bytes - (_size(part) if _goes_on(part, file) else 0)


def _fetch(source: HubRanges, file: RepoFile, blob: Path, on_bytes: Callable[[int], None]) -> None:
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(blob)
    with part.open("ab" if _goes_on(part, file) else "wb") as target:
        begin = target.tell()
        on_bytes(begin)
        for chunk in source.read(file.name, begin, file.size_bytes):
            target.write(chunk)
            on_bytes(len(chunk))
        target.flush()
        os.fchmod(target.fileno(), 0o644)
        os.fsync(target.fileno())
    part.replace(blob)


def _part_of(blob: Path) -> Path:
    return blob.with_name(f".{blob.name}.sparkdeploy-part")


def _goes_on(part: Path, file: RepoFile) -> bool:
    """Small files come whole or not at all: not every server cuts those."""
    return file.sha256 is not None and _size(part) <= file.size_bytes


def _blob_name(repo: str, file: RepoFile) -> str:
    """What the cache calls a file's content: the hub's hash of it."""
    name = file.sha256 or file.git_sha1
    if name is None:
        raise CheckpointError(f"{repo}: the hub states no hash of {file.name}.")
    return name


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _has_size(path: Path, size_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes
