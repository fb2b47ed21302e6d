"""Who is at the other end of a connection to the server's port, before a key is sent there.

While a server loads or starts again, another user of the machine can listen on its port, as the
container is on the machine's network.
"""

import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass

from sparkdeploy_vllm.guard import processes
from sparkdeploy_vllm.guard.waiting import ESTABLISHED, TABLES, connections

_LISTENS = b"0A"
_ANY_ADDRESS = (b"", b"FFFF")
"""0.0.0.0, [::] and [::ffff:0.0.0.0] without their zeros."""
_NOT_ACCEPTED = b"0"
"""The inode of a connection that its listener has not taken yet."""


@dataclass(frozen=True, slots=True)
class _Holder:
    inode: bytes
    uid: int


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
    for row in connections(TABLES):
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
