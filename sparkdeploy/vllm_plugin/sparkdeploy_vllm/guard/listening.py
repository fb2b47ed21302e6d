"""Who is at the other end of connections to the server's port, by the kernel's own list.

A key is sent to processes of ours only: while a server loads or starts again, another user of the
machine can listen on its port, as the container is on the machine's network.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparkdeploy_vllm.guard import processes

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = b"01"
_LISTENS = b"0A"
_ANY_ADDRESS = (b"", b"FFFF")
"""0.0.0.0, [::] and [::ffff:0.0.0.0] without their zeros."""
_NOT_ACCEPTED = b"0"
"""The inode of a connection that its listener has not taken yet."""


class _Holder(NamedTuple):
    inode: bytes
    uid: int


def connected(port: int) -> frozenset[bytes]:
    ours = b":%04X" % port
    rows = _connections()
    return frozenset(row[2] for row in rows if row[3] == ESTABLISHED and row[1].endswith(ours))


def _connections() -> Iterator[list[bytes]]:
    """Yield the columns of every TCP socket; none where the kernel does not tell."""
    for table in TABLES:
        with suppress(OSError):  # a machine without IPv6
            yield from (line.split() for line in table.read_bytes().splitlines()[1:])


def is_server_below(connection: socket.socket) -> bool:
    """Whether a connected socket leads to a process that this one started.

    Both the other end and whatever listens on its port have to be held by such processes, or be
    of this user's where one of them may not be read. False where the kernel does not say.
    """
    holders = _holders(connection)
    if not holders:
        return False
    left = {it.inode for it in holders}
    is_complete = True
    for pid in processes.descendants(os.getpid()):
        try:
            left -= _socket_inodes(pid)
        except PermissionError:
            is_complete = False
        if not left:
            return True
    return not is_complete and all(it.uid == os.getuid() for it in holders)


def _holders(connection: socket.socket) -> list[_Holder]:
    """The sockets that have, or may have, what is sent; none without one that listens."""
    here, there = _written(connection.getsockname()), _written(connection.getpeername())
    listening, accepted = [], []
    for row in _connections():
        local, remote, state, holder = row[1], row[2], row[3], _Holder(row[9], int(row[7]))
        if state == _LISTENS and _takes(local, there):
            listening.append(holder)
        elif state == ESTABLISHED and local.endswith(there) and remote.endswith(here):
            accepted.append(holder)
    if not listening:
        return []
    return [*listening, *(it for it in accepted if it.inode != _NOT_ACCEPTED)]


def _takes(listening: bytes, there: bytes) -> bool:
    """Whether a listener's address takes connections to `there`."""
    address, _, port = listening.partition(b":")
    is_any = address.strip(b"0") in _ANY_ADDRESS and there.endswith(b":" + port)
    return is_any or listening.endswith(there)


def _written(address: tuple[str, int]) -> bytes:
    """An IPv4 address as the kernel writes it; in IPv6's table the same stands at the end."""
    number = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return b"%08X:%04X" % (number, address[1])


def _socket_inodes(pid: int) -> set[bytes]:
    """PermissionError for a process that may not be read."""
    found = set()
    folder = f"/proc/{pid}/fd"
    with suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(folder):  # noqa: PTH208 - as little work as can be
            with suppress(FileNotFoundError):
                target = os.readlink(f"{folder}/{name}").encode()  # noqa: PTH115
                if target.startswith(b"socket:["):
                    found.add(target[8:-1])
    return found
