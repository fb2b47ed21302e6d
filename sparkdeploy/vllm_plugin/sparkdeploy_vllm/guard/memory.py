"""The machine's available memory, read without allocating, and the guard's own, locked."""

import ctypes
import os
import resource
from pathlib import Path

MCL_CURRENT = 1
MCL_FUTURE = 2
_KEY = b"MemAvailable:"
_KIB = 1024


class AvailableMemory:
    """MemAvailable of a meminfo file that is opened once and read into one buffer."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = bytearray(4096)
        self._buffers = [self._buffer]

    def read_bytes(self) -> int | None:
        """Bytes available now; None when the file does not say (then nothing is decided on it)."""
        try:
            length = os.preadv(self._descriptor, self._buffers, 0)
        except OSError:
            return None
        start = self._buffer.find(_KEY, 0, length)
        if start < 0:
            return None
        kib, position = 0, start + len(_KEY)
        while position < length and self._buffer[position] != ord("\n"):
            digit = self._buffer[position] - ord("0")
            if 0 <= digit <= 9:
                kib = kib * 10 + digit
            position += 1
        return kib * _KIB


def lock_memory() -> str | None:
    """Keep this process in RAM so that it can act when memory is short; None, or why not.

    Future allocations are locked too only when the limit is unlimited: under a small limit they
    would fail instead.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    flags = MCL_CURRENT | (MCL_FUTURE if soft == resource.RLIM_INFINITY else 0)
    if libc.mlockall(flags) == 0:
        return None
    return f"{os.strerror(ctypes.get_errno())} (RLIMIT_MEMLOCK is {soft} bytes)"
