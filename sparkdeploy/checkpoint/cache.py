"""The hub's cache on this disk: names, blobs, parts of blobs, and what is still missing.

The layout is that of the hub's own library. A cache is shared with other programs and older
releases, so that any name in it may be a link. Everything is written by descriptors of open
folders: what was looked at is what is written to.
"""

import contextlib
import errno
import os
import re
import secrets
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

from sparkdeploy.checkpoint.durable import disk_errors
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, check_repo
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import read_bytes

SNAPSHOTS = "snapshots"
STORE = "blobs"
"""The folder of a cache whose files repositories share, as <2 digits>/<64 digits>."""
REFERENCE_LIMIT_BYTES = 4096
BLOBS = "blobs"
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def repo_folder(cache: Path, repo: str) -> Path:
    """CheckpointError for a name with `--`: the cache writes `/` so, and two would be one."""
    check_repo(repo)
    return cache / f"models--{repo.replace('/', '--')}"


def repo_of(root: Path) -> str:
    return root.name.removeprefix("models--").replace("--", "/", 1)


def snapshot_folder(cache: Path, repo: str, commit: str) -> Path:
    return repo_folder(cache, repo) / SNAPSHOTS / commit


def require_links(folder: Path) -> None:
    """Raise CheckpointError where a file system takes no symbolic links, before writing."""
    place = next(it for it in (folder, *folder.parents) if it.is_dir())
    link = place / f".sparkdeploy-link-{secrets.token_hex(8)}"
    try:
        link.symlink_to("nothing")
        link.unlink()
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise CheckpointError(
                f"{folder} is on a file system without symbolic links "
                f"({file_system_of(place)}), and caches and overlays of models are made of them",
                hint="point HF_HOME and XDG_DATA_HOME at folders of a disk with ext4, xfs or btrfs",
            ) from error


def file_system_of(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the kind of a folder's file system, such as `vfat`, by the longest mount above it."""
    found, length = "unknown", -1
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, kind, *_ = [*line.split(" "), "", "", ""]
            place = re.sub(r"\\([0-7]{3})", lambda it: chr(int(it[1], 8)), place)
            if place and folder.is_relative_to(place) and len(place) >= length:
                found, length = kind, len(place)
    return found


def missing_in(snapshot: Path, files: Iterable[RepoFile]) -> tuple[RepoFile, ...]:
    return tuple(file for file in files if not _has_size(snapshot / file.name, file))


def point_branch(cache: Path, facts: RepoFacts) -> None:
    """Let the cache's own record of the branch name this commit, for other programs' sake."""
    if facts.revision == facts.commit:
        return
    root = repo_folder(cache, facts.repo)
    if branch_commit(root, facts.revision) == facts.commit:
        return
    *folders, name = facts.revision.split("/")
    with (
        disk_errors(str(root / "refs" / facts.revision)),
        open_folder(root, ("refs", *folders)) as folder,
        create_file(folder, name, "wb") as reference,
    ):
        reference.write(facts.commit.encode())


def branch_commit(root: Path, revision: str) -> str | None:
    """What the cache's record of a branch says: other programs write it, and it may be anything."""
    try:
        return read_bytes(root / "refs" / revision, REFERENCE_LIMIT_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return None


def has_blob(root: Path, file: RepoFile) -> bool:
    return _has_size(root / BLOBS / file.blob_name, file)


def link_blob(file: RepoFile, snapshot: Path) -> None:
    """Let a name of a snapshot lead to its blob; CheckpointError for a folder that is a link."""
    root, place = snapshot.parent.parent, snapshot / file.name
    with open_folder(root, _folders(snapshot, file)) as folder:
        remove(folder, place.name)
        target = os.path.relpath(root / BLOBS / file.blob_name, place.parent)
        os.symlink(target, place.name, dir_fd=folder)


def discard_file(file: RepoFile, snapshot: Path) -> None:
    """Remove a file of a snapshot, and its blob; of the shared store the link alone."""
    root = snapshot.parent.parent
    place = snapshot / file.name
    with open_folder(root, _folders(snapshot, file)) as folder:
        # By the letters of the link: what it leads to may be a link itself, and is not asked.
        link = place.readlink() if place.is_symlink() else place.name
        target = Path(os.path.normpath(place.parent / link))
        remove(folder, place.name)
    if target.parent == root / BLOBS:
        with open_folder(root, (BLOBS,)) as blobs:
            remove(blobs, target.name)


def bytes_to_fetch(file: RepoFile, snapshot: Path) -> int:
    """What a download would fetch: nothing of content that is here, and the rest of a part."""
    root = snapshot.parent.parent
    if has_blob(root, file) or blob_elsewhere(file, root) is not None:
        return 0
    return file.size_bytes - part_bytes(file, root / BLOBS / part_name(file))


def blob_elsewhere(file: RepoFile, root: Path) -> Path | None:
    """Another repository's content of that hash, where this user may give it a second name."""
    if file.sha256 is None:
        return None
    here = root if root.exists() else root.parent
    for blob in root.parent.glob(f"models--*/{BLOBS}/{file.sha256}"):
        if _has_size(blob, file):
            status = blob.stat()
            if os.geteuid() in {0, status.st_uid} and status.st_dev == here.stat().st_dev:
                return blob
    return None


def part_name(file: RepoFile) -> str:
    return f".{file.blob_name}.sparkdeploy-part"


def tidy_blob(file: RepoFile, blobs: int) -> None:
    """Remove what killed tries have left beside a blob, for the holder of its lock alone."""
    of_library = re.compile(rf"{file.blob_name}\.\w+\.incomplete|\.{file.blob_name}\.\w+\.shared")
    for name in os.listdir(blobs):
        if name == part_name(file) or of_library.fullmatch(name):
            remove(blobs, name)


def part_bytes(file: RepoFile, part: Path | str, *, folder: int | None = None) -> int:
    """Bytes a download resumes after; 0 for small files, which not every server cuts."""
    here_bytes = _regular_bytes(part, folder=folder) if file.sha256 is not None else None
    return here_bytes if here_bytes is not None and here_bytes <= file.size_bytes else 0


def _folders(snapshot: Path, file: RepoFile) -> tuple[str, ...]:
    return (SNAPSHOTS, snapshot.name, *file.name.split("/")[:-1])


def _has_size(path: Path, file: RepoFile) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size_bytes


@contextlib.contextmanager
def open_folder(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor of the folder below `root` that `parts` lead to; what lacks is made.

    `root` may be a link to another disk. Raises CheckpointError when a part is a link.
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
            hint=f"look at it, then remove it and try again: ls -ld {shlex.quote(str(path))}",
        ) from error


def create_file(folder: int, name: str, mode: Literal["a+b", "wb"]) -> IO[bytes]:
    """Open a file of an open folder for writing, and never what a link of that name leads to."""
    if _regular_bytes(name, folder=folder) is None:
        # A link, a pipe or a second name of another file: it is not what it stands for.
        remove(folder, name)
    # Without O_NONBLOCK a pipe that came in between would wait for its reader.
    guard = os.O_NOFOLLOW | os.O_NONBLOCK

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | guard, 0o644, dir_fd=folder)

    return open(name, mode, opener=opener)


def remove(folder: int, name: str) -> None:
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
