"""What lies below a checkpoint's folder: regular files and folders, or it is none to be read."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_SUFFIXES = (".json", ".jinja", ".model", ".safetensors", ".txt")
"""Of names that engines open as files; a folder of such a name is a damaged checkpoint."""
_HINT = "remove it, or download again"


def plain_files(folder: Path, *, folder_links: bool = False) -> tuple[str, ...]:
    """Return the names of all files below a folder, relative to it, sorted, but for hidden ones.

    Links count as what they lead to; links to folders are not followed, and named only when
    `folder_links` are wanted. Raises CheckpointError
    for a pipe, a socket, a device, a link to nothing, and a name that is no UTF-8; PermissionError
    for what this user may not look at.
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
