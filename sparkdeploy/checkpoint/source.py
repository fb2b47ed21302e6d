"""Where a checkpoint's files come from: the Hugging Face cache or a folder of one's own.

Nothing is read but what lies below the folder or, by its exact name, in the store of the cache: a
container that mounts them follows links in the same way.
"""

import contextlib
import errno
import hashlib
import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sparkdeploy.checkpoint.cache import (
    BLOBS,
    SNAPSHOTS,
    STORE,
    branch_commit,
    repo_folder,
    repo_of,
)
from sparkdeploy.checkpoint.repo_files import name_problem, printable
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.node.tree import STORED
from sparkdeploy.recipe.paths import MODEL_FILES

FILE_SUFFIXES = (".json", ".jinja", ".model", ".safetensors", ".txt")
"""Of names that engines open as files; a folder of such a name is a damaged checkpoint."""
_HINT = "remove it, or download again"
LINKS_LIMIT = 40


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


@dataclass(frozen=True, slots=True)
class Content:
    """What a name leads to. `hops` are the name and every link after it, as far as in the root."""

    path: Path
    hops: tuple[Path, ...]
    blob_name: str | None
    """What the hub calls the content; None for a file that is no blob of a cache."""
    is_shared: bool


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Name the file that this user may not look at; the container's user is asked about later."""
    try:
        yield
    except PermissionError as error:
        path = str(error.filename or ".")
        raise NodeError(
            f"{printable(error.filename or error)} cannot be read by this user",
            hint="run this as the owner of the model's files, or make them readable: "
            f"chmod -R a+rX {shlex.quote(path)}",
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
    """Return a folder of one's own; a snapshot inside a Hugging Face cache is recognised as one."""
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


@readable()
def within(source: CheckpointSource, folder: str) -> CheckpointSource | None:
    """Return a folder of a repository as a source of its own; None where no model lies there."""
    inner = source.files_dir / folder
    if not any((inner / name).is_file() for name in MODEL_FILES):
        return None
    return _checked(replace(source, files_dir=inner))


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

    Judged by mode bits from `root` downwards, because that is what a mount shows, without
    supplementary groups and the rights of root. Files of the store are mounted one by one.
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


def plain_files(folder: Path, *, folder_links: bool = False) -> tuple[str, ...]:
    """Return the names of all files below a folder, relative to it, sorted, but for hidden ones.

    Links to folders are not followed, and named only when `folder_links` are wanted. Raises
    PermissionError for what this user may not look at, CheckpointError for what is no file.
    """
    try:
        return tuple(sorted(_files_below(folder, folder_links=folder_links)))
    except PermissionError:
        raise
    except OSError as error:
        raise CheckpointError(f"{printable(folder)} cannot be read: {error.strerror}") from error


def _files_below(folder: Path, *, folder_links: bool) -> Iterator[str]:
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                is_folder = _is_folder(entry)
                if is_folder and not entry.is_symlink():
                    pending.append(entry.path)
                elif folder_links or not is_folder:
                    yield os.path.relpath(entry.path, folder)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    shown = printable(entry.path)
    try:
        entry.name.encode()
        kind = stat.S_IFMT(entry.stat().st_mode)
    except UnicodeEncodeError as error:
        # Neither an index nor a manifest could name it.
        raise CheckpointError(f"the name of {shown} is no UTF-8.", hint="rename it") from error
    except FileNotFoundError as error:
        raise CheckpointError(f"{shown} links to nothing.", hint=_HINT) from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CheckpointError(
            f"{shown} is a link that leads back to itself.", hint=_HINT
        ) from error
    if kind == stat.S_IFDIR and not entry.name.endswith(FILE_SUFFIXES):
        return True
    if kind != stat.S_IFREG:
        # A pipe would be waited for until somebody writes to it.
        raise CheckpointError(f"{shown} is not a regular file.", hint=_HINT)
    return False


def real_path(path: Path) -> Path:
    """The file behind all links; Path.resolve raises on links that go in circles."""
    return Path(os.path.realpath(path))


def follow(named: Path, root: Path, store: Path | None) -> Content:
    """Follow a name below `root` to its content.

    `store` is the shared store beside a repository's real root; nothing else outside of the root
    counts. Raises CheckpointError for a link that leads elsewhere, and for an absolute one.
    """
    real_root = real_path(root)
    hops: list[Path] = []
    place = named
    while len(hops) < LINKS_LIMIT:
        if _is_stored(place, store):
            _check_kind(named, place, frozenset({stat.S_IFREG}))
            return Content(place, tuple(hops), _blob_name(hops, real_root) or place.name, True)
        # Its folder may be a link; from there on, the letters of links count.
        place = real_path(place.parent) / place.name
        if not place.is_relative_to(real_root):
            raise CheckpointError(
                f"{printable(named)} links to {printable(place)}, outside the folder that would "
                "be mounted.",
                hint="Copy the file into the folder, or name the folder that holds the real files.",
            )
        hops.append(place)
        if not place.is_symlink():
            _check_kind(named, place, frozenset({stat.S_IFREG, stat.S_IFDIR}))
            return Content(place, tuple(hops), _blob_name(hops, real_root), False)
        link = place.readlink()
        place = Path(os.path.normpath(place.parent / link))
        is_known = real_path(place).is_relative_to(real_root) or _is_stored(place, store)
        if link.is_absolute() and is_known:
            raise CheckpointError(
                f"{printable(named)} is an absolute link, which leads nowhere in a container.",
                hint="Make it relative: `ln -srf TARGET LINK`.",
            )
    raise CheckpointError(f"{printable(named)} is a link that leads back to itself.", hint=_HINT)


def shared_files(root: Path) -> Mapping[Path, Path]:
    """The blobs of a repository that are links into the store beside it, and what they lead to."""
    store = real_path(root).parent / STORE
    found: dict[Path, Path] = {}
    for blob in sorted((root / BLOBS).glob("*")):
        if blob.is_symlink():
            try:
                content = follow(blob, root, store)
            except CheckpointError:
                continue
            if content.is_shared:
                found[blob] = content.path
    return found


def _check_kind(named: Path, content: Path, kinds: frozenset[int]) -> None:
    try:
        kind = stat.S_IFMT(content.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{printable(named)} links to {printable(content)}, which is not there.",
            hint="Download the model again; an interrupted download looks like this.",
        ) from error
    if kind not in kinds:
        # A pipe would be waited for until somebody writes to it.
        raise CheckpointError(f"{printable(named)} is not a regular file.", hint=_HINT)


def _is_stored(place: Path, store: Path | None) -> bool:
    if store is None or not place.is_relative_to(store):
        return False
    return STORED.fullmatch(str(place.relative_to(store))) is not None


def _blob_name(hops: list[Path], real_root: Path) -> str | None:
    blobs = real_root / BLOBS
    return next((hop.name for hop in hops if hop.parent == blobs), None)
