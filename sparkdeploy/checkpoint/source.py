"""Where a checkpoint's files come from: the Hugging Face cache or a folder of one's own."""

import contextlib
import hashlib
import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sparkdeploy.checkpoint.cache import SNAPSHOTS, STORE, branch_commit, repo_folder, repo_of
from sparkdeploy.checkpoint.model_files import Content, follow, plain_files, real_path
from sparkdeploy.checkpoint.repo_files import name_problem, printable
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.recipe.paths import MODEL_FILES


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """Untouched files, and what must be mounted for all of them to be found.

    `root` is the cache's folder models--ORG--NAME, or the local folder itself. `files_dir` holds
    the files by name: the snapshot of one commit, or the local folder. In a container `root` is at
    /m/hub/<mount_name>, and each file of `shared` at /m/hub/blobs/<its folder>/<its name>.
    """

    kind: Literal["hub", "folder"]
    name: str
    root: Path
    files_dir: Path
    revision: str | None
    mount_name: str
    shared: tuple[Path, ...] = ()
    """Files of the cache's shared store that names of `files_dir` lead to, sorted."""

    def files(self) -> tuple[Path, ...]:
        """Every file, relative to `files_dir`, sorted; names that begin with a dot are left out."""
        return tuple(map(Path, plain_files(self.files_dir, folder_links=True)))


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Name the file that this user may not look at; the container's user is asked about later."""
    try:
        yield
    except PermissionError as error:
        raise NodeError(
            f"{printable(str(error.filename))} cannot be read by this user",
            hint="run this as the owner of the model's files, or make them readable: chmod a+rX",
        ) from error


@readable()
def find_in_hub_cache(repo: str, revision: str | None, hub_cache: Path) -> CheckpointSource | None:
    """The cached snapshot at a branch, tag or commit; CheckpointError when files lead nowhere."""
    root = repo_folder(hub_cache, repo)
    commit = _resolved_revision(root, revision or "main")
    if commit is None:
        return None
    return _snapshot(root, repo, commit)


@readable()
def open_folder(path: Path) -> CheckpointSource:
    """A folder of one's own; a snapshot inside a Hugging Face cache is recognised as one.

    Raises CheckpointError when it is no folder, holds no config.json, or links out of itself, since
    a container that mounts it would not find those files.
    """
    folder = path.expanduser().absolute()
    if not folder.exists():
        raise CheckpointError(f"{path} does not exist.", hint="Name the folder of a model.")
    if not folder.is_dir():
        raise CheckpointError(f"{path} is not a folder.")
    if not any((folder / name).is_file() for name in MODEL_FILES):
        raise CheckpointError(
            f"{path} has no config.json.", hint="Name the folder that holds the model's files."
        )
    cached_root = folder.parent.parent
    if folder.parent.name == SNAPSHOTS and cached_root.name.startswith("models--"):
        return _snapshot(cached_root.resolve(), repo_of(cached_root), folder.name)
    folder = folder.resolve()
    # Two folders may share a name; the mounts of a machine must not.
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    mount_name = f"local--{folder.name}-{digest}"
    return _checked(CheckpointSource("folder", folder.name, folder, folder, None, mount_name))


def fetch_command(repo: str, revision: str | None) -> str:
    pinned = repo if revision in (None, "main") else f"{repo}@{revision}"
    return shlex.join(["sparkdeploy", "checkpoint", "pull", pinned])


def source_identity(source: CheckpointSource) -> str:
    """A sha256 in hex that changes when a file does; nothing but file status is read.

    A cached file is known by the name of its blob (its hash), another by its time of change.
    """
    digest = hashlib.sha256()
    for relative in source.files():
        content = _content(source, relative)
        status = content.path.stat()
        known_by = content.blob_name or str(status.st_mtime_ns)
        digest.update(f"{relative}\0{status.st_size}\0{known_by}\0".encode())
    return digest.hexdigest()


def unreadable_by(source: CheckpointSource, uid: int, gid: int) -> tuple[Path, ...]:
    """What a process of this user and group could not read: files, or folders on the way to them.

    Judged by mode bits from `root` downwards, because that is what a mount shows; supplementary
    groups do not count, and neither does being root, who has no capability to ignore modes in our
    containers. Folders of the shared store do not count: its files are mounted one by one.
    """
    blocked: dict[Path, None] = {}
    for relative in source.files():
        content = _content(source, relative)
        folders = [folder for hop in content.hops for folder in _folders_down_to(source.root, hop)]
        shut = [folder for folder in folders if not _permits(folder, uid, gid, stat.S_IXOTH)]
        blocked.update(dict.fromkeys(shut))
        if not shut and not _permits(content.path, uid, gid, stat.S_IROTH):
            blocked[source.files_dir / relative] = None
    return tuple(blocked)


def _resolved_revision(root: Path, revision: str) -> str | None:
    """The name of a snapshot's folder: other programs write into it what a hub has told them."""
    if name_problem(revision) is not None:
        return None
    if (root / SNAPSHOTS / revision).is_dir():
        return revision
    commit = branch_commit(root, revision)
    if commit is None:
        return None
    is_name = name_problem(commit) is None and "/" not in commit
    return commit if is_name and (root / SNAPSHOTS / commit).is_dir() else None


def _snapshot(root: Path, repo: str, commit: str) -> CheckpointSource:
    snapshot = root / SNAPSHOTS / commit
    return _checked(CheckpointSource("hub", repo, root, snapshot, commit, mount_name=root.name))


def _checked(source: CheckpointSource) -> CheckpointSource:
    """Follow every name once: what leads nowhere, or where no container gets to, is refused."""
    found = [_content(source, relative) for relative in source.files()]
    return replace(source, shared=tuple(sorted({it.path for it in found if it.is_shared})))


def _content(source: CheckpointSource, relative: Path) -> Content:
    store = None if source.kind == "folder" else real_path(source.root).parent / STORE
    return follow(source.files_dir / relative, source.root, store)


def _folders_down_to(root: Path, file: Path) -> Iterator[Path]:
    for candidate in (root, root.resolve()):
        if file.is_relative_to(candidate):
            yield from reversed([p for p in file.parents if p.is_relative_to(candidate)])
            return


def _permits(path: Path, uid: int, gid: int, bit: int) -> bool:
    """Whether the class that `uid` and `gid` fall into has `bit`, given as the bit for others."""
    status = path.stat()
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return bool(status.st_mode & bit << shift)
