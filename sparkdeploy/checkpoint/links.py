"""Where a file's name leads, link by link, as a container that mounts its folder follows it."""

from __future__ import annotations

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
    from collections.abc import Mapping

LINKS_LIMIT = 40
"""What Linux follows for one name."""


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
                f"{_shown(named)} links to {_shown(place)}, outside the folder that would be "
                "mounted.",
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
                f"{_shown(named)} is an absolute link, which leads nowhere in a container.",
                hint="Make it relative: `ln -srf TARGET LINK`.",
            )
    raise CheckpointError(
        f"{_shown(named)} is a link that leads back to itself.", hint="remove it, or download again"
    )


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
            f"{_shown(named)} links to {_shown(content)}, which is not there.",
            hint="Download the model again; an interrupted download looks like this.",
        ) from error
    if kind not in kinds:
        # A pipe would be waited for until somebody writes to it.
        raise CheckpointError(
            f"{_shown(named)} is not a regular file.", hint="remove it, or download again"
        )


def _is_stored(place: Path, store: Path | None) -> bool:
    if store is None or not place.is_relative_to(store):
        return False
    return STORED.fullmatch(str(place.relative_to(store))) is not None


def _blob_name(hops: list[Path], real_root: Path) -> str | None:
    blobs = real_root / BLOBS
    return next((hop.name for hop in hops if hop.parent == blobs), None)


def _shown(path: Path) -> str:
    return printable(str(path))
