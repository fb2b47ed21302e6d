"""Files of a repository into the hub's cache, going on at the byte where an earlier try ended.

The hub's own library begins a file anew when its process was killed (huggingface_hub 2.4), and
leaves what it had; a shard has gigabytes. The layout of the cache is the library's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.checkpoint.ranges import HubRanges
    from sparkdeploy.checkpoint.repo_files import RepoFile

_BLOBS = "blobs"


def bring_blob(
    source: HubRanges, file: RepoFile, snapshot: Path, on_bytes: Callable[[int], None]
) -> None:
    """Bring a file to its place in `snapshot`, which is <cache>/models--ORG--NAME/snapshots/COMMIT.

    `on_bytes` gets the bytes that are there since it was called last, the first time those of an
    earlier try. What is wrong with the content is for the caller to find out. Raises
    CheckpointError when a folder on the way is a link.
    """
    root = _root(snapshot)
    blob = root / _BLOBS / file.blob_name
    if not _has_size(blob, file.size_bytes):
        with open_folder_inside(root, (_BLOBS,)) as blobs:
            _fetch(source, file, blobs, on_bytes)
    place = snapshot / file.name
    with open_folder_inside(root, _folders(snapshot, file)) as folder:
        remove(folder, place.name)
        os.symlink(os.path.relpath(blob, place.parent), place.name, dir_fd=folder)


def discard_blob(file: RepoFile, snapshot: Path) -> None:
    """Remove a file of a snapshot, and the blob of this repository that it leads to.

    Where blobs are links into a store that repositories share, the link is removed: what lies in
    the store belongs to others as well.
    """
    root = _root(snapshot)
    place = snapshot / file.name
    with open_folder_inside(root, _folders(snapshot, file)) as folder:
        target = _next_hop(place)
        remove(folder, place.name)
    if target.parent == root / _BLOBS:
        with open_folder_inside(root, (_BLOBS,)) as blobs:
            remove(blobs, target.name)


def bytes_to_come(file: RepoFile, snapshot: Path) -> int:
    """What `bring_blob` would fetch: nothing of a blob that is there, and the rest of a part."""
    blob = _root(snapshot) / _BLOBS / file.blob_name
    if _has_size(blob, file.size_bytes):
        return 0
    return file.size_bytes - _bytes_here(file, regular_bytes(blob.with_name(_part_name(file))))


def _fetch(source: HubRanges, file: RepoFile, blobs: int, on_bytes: Callable[[int], None]) -> None:
    part = _part_name(file)
    here_bytes = _bytes_here(file, regular_bytes(part, folder=blobs))
    with create_file(blobs, part, "ab" if here_bytes else "wb") as target:
        on_bytes(here_bytes)
        for chunk in source.read(file.name, here_bytes, file.size_bytes):
            target.write(chunk)
            on_bytes(len(chunk))
        target.flush()
        os.fchmod(target.fileno(), 0o644)
        os.fsync(target.fileno())
    os.replace(part, file.blob_name, src_dir_fd=blobs, dst_dir_fd=blobs)


def _bytes_here(file: RepoFile, part_bytes: int | None) -> int:
    """What of a part is gone on with. Small files come whole: not every server cuts those."""
    goes_on = file.sha256 is not None and part_bytes is not None and part_bytes <= file.size_bytes
    return part_bytes if goes_on and part_bytes is not None else 0


def _next_hop(place: Path) -> Path:
    """Where a link leads by its letters; that may be a link itself, and is not asked."""
    if not place.is_symlink():
        return place
    return Path(os.path.normpath(place.parent / place.readlink()))


def _root(snapshot: Path) -> Path:
    return snapshot.parent.parent


def _folders(snapshot: Path, file: RepoFile) -> tuple[str, ...]:
    """The folders from the repository's own down to the one that holds the file."""
    return (snapshot.parent.name, snapshot.name, *file.name.split("/")[:-1])


def _part_name(file: RepoFile) -> str:
    return f".{file.blob_name}.sparkdeploy-part"


def _has_size(path: Path, size_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def open_folder_inside(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor of the folder below `root` that `parts` lead to; what lacks is made.

    `root` itself may be a link, as users make one to another disk. Raises CheckpointError when a
    part is a link or no folder, wherever it leads.
    """
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, _FOLDER)
    try:
        for depth, part in enumerate(parts):
            inner = _open_part(descriptor, part, root.joinpath(*parts[: depth + 1]))
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def create_file(folder: int, name: str, mode: Literal["ab", "wb"]) -> IO[bytes]:
    """Open a file of an open folder for writing, and never what a link of that name leads to.

    A link, a pipe or a second name of another file is removed first: it is not what it stands for.
    """
    if regular_bytes(name, folder=folder) is None:
        remove(folder, name)
    # Without O_NONBLOCK a pipe that came in between would wait for its reader.
    guard = os.O_NOFOLLOW | os.O_NONBLOCK

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | guard, 0o644, dir_fd=folder)

    return open(name, mode, opener=opener)


def remove(folder: int, name: str) -> None:
    """Remove a name of an open folder if it is there; where a link leads is left alone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def regular_bytes(path: Path | str, *, folder: int | None = None) -> int | None:
    """The length of a plain file with one name, or None for anything else or nothing."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    is_own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return status.st_size if is_own else None


def _open_part(folder: int, part: str, path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
            raise
        raise CheckpointError(
            f"{path} is a link or a file where a folder must be; nothing was written through it.",
            hint=f"look at it, then remove it and try again: ls -ld {path}",
        ) from error
