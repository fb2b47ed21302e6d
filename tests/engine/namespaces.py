"""Where other processes live: their network, and the files they see."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Put this thread, and what it starts, into the network of a process."""
    with (
        Path("/proc/thread-self/ns/net").open("rb") as own,
        Path(f"/proc/{pid}/ns/net").open("rb") as other,
    ):
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def children_of(pid: int) -> list[int]:
    """Return the processes that a process's first thread has started and that are still there."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _enter(namespace: int) -> None:
    """Like os.setns, which Python has from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
