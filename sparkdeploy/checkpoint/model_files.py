"""Files below a checkpoint's folder, and where their names lead: nothing else is read there.

A container that mounts the folder follows its links in the same way.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.cache import BLOBS, STORE
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node.tree import STORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE_SUFFIXES = (".json", ".jinja", ".model", ".safetensors", ".txt")
"""Of names that engines open as files; a folder of such a name is a damaged checkpoint."""
_HINT = "remove it, or download again"
LINKS_LIMIT = 40


def plain_files(folder: Path, *, folder_links: bool = False) -> tuple[str, ...]:
    """Return the names of all files below a folder, relative to it, sorted, but for hidden ones.

    Links count as what they lead to; links to folders are not followed, and named only when
    `folder_links` are wanted. Raises CheckpointError for a pipe, a socket, a device, a link to
    nothing, and a name that is no UTF-8; PermissionError for what this user may not look at.
    """
    try:
        return tuple(sorted(_files_below(folder, folder_links=folder_links)))
    except PermissionError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"{printable(str(folder))} cannot be read: {error.strerror}"
        ) from error


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
    """Whether it is a folder and not a file; CheckpointError for anything else."""
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


@dataclass(frozen=True, slots=True)
class Content:
    """What a name leads to. `hops` are the name and every link after it, as far as in the root."""

    path: Path
    hops: tuple[Path, ...]
    blob_name: str | None
    """What the hub calls the content; None for a file that is no blob of a cache."""
    is_shared: bool
    """Whether it lies in the store that repositories of a cache share."""


def real_path(path: Path) -> Path:
    """The file behind all links; Path.resolve raises on links that go in circles."""
    return Path(os.path.realpath(path))


def follow(named: Path, root: Path, store: Path | None) -> Content:
    """Follow a name below `root` to its content.

    `store` is the shared store beside a repository's real root; nothing else outside of the root
    counts as found. Raises CheckpointError for links that lead nowhere, in circles, elsewhere or by
    an absolute path, and for what is neither a file nor a folder.
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
                f"{_printable(named)} links to {_printable(place)}, outside the folder that would "
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
                f"{_printable(named)} is an absolute link, which leads nowhere in a container.",
                hint="Make it relative: `ln -srf TARGET LINK`.",
            )
    raise CheckpointError(f"{_printable(named)} is a link that leads back to itself.", hint=_HINT)


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
            f"{_printable(named)} links to {_printable(content)}, which is not there.",
            hint="Download the model again; an interrupted download looks like this.",
        ) from error
    if kind not in kinds:
        # A pipe would be waited for until somebody writes to it.
        raise CheckpointError(f"{_printable(named)} is not a regular file.", hint=_HINT)


def _is_stored(place: Path, store: Path | None) -> bool:
    if store is None or not place.is_relative_to(store):
        return False
    return STORED.fullmatch(str(place.relative_to(store))) is not None


def _blob_name(hops: list[Path], real_root: Path) -> str | None:
    blobs = real_root / BLOBS
    return next((hop.name for hop in hops if hop.parent == blobs), None)


def _printable(path: Path) -> str:
    return printable(str(path))
