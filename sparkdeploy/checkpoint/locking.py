"""One builder of a checkpoint at a time."""

from __future__ import annotations

import contextlib
import os
import shlex
from typing import TYPE_CHECKING

from sparkdeploy.console import console
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node.lock import lock_within
from sparkdeploy.node.plain_file import NotPlainError, freeing_command, open_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 3600.0
"""How long a second builder waits for the first one's work, which it then finds done."""


@contextlib.contextmanager
def only_one(
    path: Path,
    work: str,
    *,
    patience_s: float = PATIENCE_S,
    on_wait: Callable[[str], None] = console.info,
) -> Iterator[None]:
    """Hold the lock at `path` inside the block; CheckpointError when it does not come free.

    A cache of models may be a folder that other users write to: a link or a FIFO that one of them
    has put in the lock's place raises CheckpointError. The file stays: removing it would let two
    builders lock two files of one name.
    """

    def tell() -> None:
        on_wait(f"waiting for another process that does the same: {work}")

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open(path)
    try:
        if not lock_within(descriptor, patience_s, tell):
            raise CheckpointError(
                f"another process is at the same work: {work}",
                hint=f"wait until it has ended; its lock is {path}",
            )
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return open_plain(path)
    except NotPlainError as error:
        raise CheckpointError(
            f"the lock {path} cannot be used: {error.strerror}", hint=freeing_command(path, error)
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"the lock {path} cannot be opened: {error.strerror}",
            hint=f"look at whose it is: ls -l {shlex.quote(str(path))}",
        ) from error
