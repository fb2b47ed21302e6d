"""Whether a port is free, and whose it is when it is not."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.node.container import ListedContainer

_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class PortOwner:
    """Who listens on a port, as far as this user may see."""

    deployment: str | None = None
    process: str | None = None
    pid: int | None = None
    is_listening: bool = True
    """A deployment owns its port from its start, long before it listens."""

    def describe(self) -> str:
        if self.deployment:
            return f"deployment {self.deployment}"
        if self.process:
            return f"process {self.process} (pid {self.pid})"
        return "a process of another user"


def is_port_free(port: int, address: str = "127.0.0.1") -> bool:
    """Say whether a server could listen there now; connections that linger do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise NodeError(f"cannot try port {port} on {address}: {error.strerror}") from error
    return True


def free_port(address: str) -> int:
    """Return a port that nobody uses there now; NodeError for an address of another machine."""
    try:
        with socket.create_server((address, 0)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise NodeError(f"{address} is no address of this machine: {error.strerror}") from error


def port_owner(
    port: int, containers: Iterable[ListedContainer], proc: Path = Path("/proc")
) -> PortOwner:
    for fact in containers:
        # The parts of the other nodes carry the port of their head, who alone listens.
        if fact.is_running and not fact.rank and fact.labels.get(labels.PORT) == str(port):
            is_listening = any(_listening_inodes(port, proc))
            return PortOwner(deployment=fact.deployment, is_listening=is_listening)
    inodes = set(_listening_inodes(port, proc))
    return next(_socket_holders(inodes, proc), PortOwner())


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    wanted = f"{port:04X}"
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == _LISTENING and columns[1].rpartition(":")[2] == wanted:
                    yield columns[9]


def _socket_holders(inodes: set[str], proc: Path) -> Iterator[PortOwner]:
    targets = {f"socket:[{inode}]" for inode in inodes}
    if not targets:
        return
    for folder in sorted(proc.glob("[0-9]*")):
        with contextlib.suppress(OSError):
            if _has_open(folder, targets):
                process = (folder / "comm").read_text().strip()
                yield PortOwner(process=process, pid=int(folder.name))


def _has_open(process: Path, targets: set[str]) -> bool:
    for link in (process / "fd").iterdir():
        # A file that the process closes meanwhile is not the one.
        with contextlib.suppress(FileNotFoundError):
            if str(link.readlink()) in targets:
                return True
    return False
