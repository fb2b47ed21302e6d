"""The hub's cache on this disk: files of a repository, resumed at the byte where a try ended.

The hub's own library begins a file anew when its process was killed (huggingface_hub 2.4), and
leaves what it had; a shard has gigabytes. The layout of the cache is the library's.

A cache is shared with other programs and older releases, so that any name in it may be a link.
Everything is written by descriptors of open folders: what was looked at is what is written to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from sparkdeploy.checkpoint.durable import disk_errors, finish
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, check_repo
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkdeploy.checkpoint.ranges import RangeSource

SNAPSHOTS = "snapshots"
_BLOBS = "blobs"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def repo_folder(cache: Path, repo: str) -> Path:
    """CheckpointError for a name with `--`: the cache writes `/` so, and two would be one."""
    check_repo(repo)
    return cache / f"models--{repo.replace('/', '--')}"


def repo_of(root: Path) -> str:
    return root.name.removeprefix("models--").replace("--", "/", 1)


def snapshot_folder(cache: Path, repo: str, commit: str) -> Path:
    return repo_folder(cache, repo) / SNAPSHOTS / commit


def missing_in(snapshot: Path, files: Iterable[RepoFile]) -> tuple[RepoFile, ...]:
    """The files that a snapshot lacks or has in another size."""
    return tuple(file for file in files if not _has_size(snapshot / file.name, file))


def point_branch(cache: Path, facts: RepoFacts) -> None:
    """Let the cache's own record of the branch name this commit, for other programs' sake."""
    if facts.revision == facts.commit:
        return
    root = repo_folder(cache, facts.repo)
    *folders, name = facts.revision.split("/")
    with (
        disk_errors(str(root / "refs" / facts.revision)),
        _open_folder(root, ("refs", *folders)) as folder,
        _create_file(folder, name, "wb") as reference,
    ):
        reference.write(facts.commit.encode())


def bring_blob(
    source: RangeSource, file: RepoFile, snapshot: Path, on_bytes: Callable[[int], None]
) -> None:
    """Bring a file to its place in `snapshot`, which is <cache>/models--ORG--NAME/snapshots/COMMIT.

    `on_bytes` gets the bytes that are there since it was called last, the first time those of an
    earlier try. What is wrong with the content is for the caller to find out. Raises
    CheckpointError when a folder on the way is a link.
    """
    root = snapshot.parent.parent
    blob = root / _BLOBS / file.blob_name
    if not _has_size(blob, file):
        with _open_folder(root, (_BLOBS,)) as blobs:
            _fetch(source, file, blobs, on_bytes)
    place = snapshot / file.name
    with _open_folder(root, _folders(snapshot, file)) as folder:
        _remove(folder, place.name)
        os.symlink(os.path.relpath(blob, place.parent), place.name, dir_fd=folder)


def discard_blob(file: RepoFile, snapshot: Path) -> None:
    """Remove a file of a snapshot, and the blob of this repository that it leads to.

    Where blobs are links into a store that repositories share, the link is removed: what lies in
    the store belongs to others as well.
    """
    root = snapshot.parent.parent
    place = snapshot / file.name
    with _open_folder(root, _folders(snapshot, file)) as folder:
        # By the letters of the link: what it leads to may be a link itself, and is not asked.
        link = place.readlink() if place.is_symlink() else place.name
        target = Path(os.path.normpath(place.parent / link))
        _remove(folder, place.name)
    if target.parent == root / _BLOBS:
        with _open_folder(root, (_BLOBS,)) as blobs:
            _remove(blobs, target.name)


def bytes_to_come(file: RepoFile, snapshot: Path) -> int:
    """What `bring_blob` would fetch: nothing of a blob that is there, and the rest of a part."""
    blob = snapshot.parent.parent / _BLOBS / file.blob_name
    if _has_size(blob, file):
        return 0
    return file.size_bytes - _part_bytes(file, blob.with_name(_part_name(file)))


def _fetch(
    source: RangeSource, file: RepoFile, blobs: int, on_bytes: Callable[[int], None]
) -> None:
    part = _part_name(file)
    here_bytes = _part_bytes(file, part, folder=blobs)
    with _create_file(blobs, part, "ab" if here_bytes else "wb") as target:
        on_bytes(here_bytes)
        for chunk in source.read(file.name, here_bytes, file.size_bytes):
            target.write(chunk)
            on_bytes(len(chunk))
        finish(target)
    os.replace(part, file.blob_name, src_dir_fd=blobs, dst_dir_fd=blobs)


def _part_name(file: RepoFile) -> str:
    return f".{file.blob_name}.sparkdeploy-part"


def _part_bytes(file: RepoFile, part: Path | str, *, folder: int | None = None) -> int:
    """Bytes a download resumes after; 0 for small files, which not every server cuts."""
    part_bytes = _regular_bytes(part, folder=folder) if file.sha256 is not None else None
    return part_bytes if part_bytes is not None and part_bytes <= file.size_bytes else 0


def _folders(snapshot: Path, file: RepoFile) -> tuple[str, ...]:
    return (SNAPSHOTS, snapshot.name, *file.name.split("/")[:-1])


def _has_size(path: Path, file: RepoFile) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size_bytes


@contextlib.contextmanager
def _open_folder(root: Path, parts: Sequence[str]) -> Iterator[int]:
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


def _create_file(folder: int, name: str, mode: Literal["ab", "wb"]) -> IO[bytes]:
    """Open a file of an open folder for writing, and never what a link of that name leads to."""
    if _regular_bytes(name, folder=folder) is None:
        # A link, a pipe or a second name of another file: it is not what it stands for.
        _remove(folder, name)
    # Without O_NONBLOCK a pipe that came in between would wait for its reader.
    guard = os.O_NOFOLLOW | os.O_NONBLOCK

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | guard, 0o644, dir_fd=folder)

    return open(name, mode, opener=opener)


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _regular_bytes(path: Path | str, *, folder: int | None = None) -> int | None:
    """The length of a plain file with one name, or None for anything else or nothing."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    is_own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return status.st_size if is_own else None
