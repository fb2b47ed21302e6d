"""Where sources are kept: one process changes a source at a time, and none is half there."""

from __future__ import annotations

import contextlib
import errno
import shlex
import shutil
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import durable
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.node.private_folder import make_private
from sparkdeploy.recipe.sources.shelf import TAKEN, Sources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def changing(name: str, sources: Sources) -> Iterator[None]:
    """Keep others from changing a source inside the block; NodeError where nothing can be written.

    What killed processes have left is removed, or is what it was.
    """
    place = sources.folder
    with disk_errors(place):
        make_private(place)
        with contextlib.ExitStack() as held:
            try:
                lock = durable.only_one(place / f".{name}.lock", f"source {name}")
                held.enter_context(lock)
            except CheckpointError as error:
                raise NodeError(error.message, hint=error.hint) from error
            durable.tidy_beside(place / name)
            left = sources.files_of(name)
            if left.name != TAKEN:
                left.rename(place / name / TAKEN)
            yield


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn a full disk and its like into a NodeError that names the folder."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        look = f"{'df -h' if is_full else 'ls -ld'} {shlex.quote(str(error.filename or place))}"
        raise NodeError(
            f"{error.filename or place} cannot be written: {error.strerror or error}",
            hint=f"free some space on the disk of {place}: {look}" if is_full else look,
        ) from error


def remove(name: str, sources: Sources) -> None:
    """Forget a source at once, and delete its files afterwards.

    Raises NodeError where it stays, or where files of it do.
    """
    place = sources.folder / name
    hidden = durable.hidden_beside(place)
    place.rename(hidden)
    durable.sync_folder(place.parent)
    try:
        remove_folder(hidden)
    except OSError as error:
        raise NodeError(
            f"source {name} is forgotten, and its files are still there: {error.strerror}",
            hint=f"rm -r {shlex.quote(str(hidden))}",
        ) from error


def remove_folder(folder: Path) -> None:
    """Raise OSError where it stays; a folder that is not there is fine."""
    with contextlib.suppress(FileNotFoundError):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink()
