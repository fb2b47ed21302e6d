"""One builder at a time: the kernel frees a lock when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import time
from typing import TYPE_CHECKING, BinaryIO

from sparkdeploy.console import console
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node.plain_file import NotPlainError, made_way, open_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POLL_S = 0.1
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
    has put in the lock's place raises CheckpointError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as file:
        deadline_s = time.monotonic() + patience_s
        told = False
        while not _try_lock(file.fileno()):
            if not told:
                on_wait(f"waiting for another process that does the same: {work}")
                told = True
            if time.monotonic() >= deadline_s:
                raise CheckpointError(
                    f"another process is at the same work: {work}",
                    hint=f"wait until it has ended; its lock is {path}",
                )
            time.sleep(POLL_S)
        yield
        # The file stays: removing it would let two builders lock two files of one name.


def _opened(path: Path) -> BinaryIO:
    try:
        return os.fdopen(open_plain(path), "rb")
    except NotPlainError as error:
        raise CheckpointError(
            f"the lock {path} cannot be used: {error.strerror}",
            hint=made_way(path, error),
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"the lock {path} cannot be opened: {error.strerror}",
            hint=f"look at whose it is: ls -l {shlex.quote(str(path))}",
        ) from error


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
