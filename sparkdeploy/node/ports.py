"""Whether a port is free, whose it is when it is not, and who listens on this machine's loopback.

While a server loads or starts again, any user of the machine can bind its port, so that is asked
before a key or a prompt is sent there. The kernel says which sockets listen (/proc/net/tcp) and
which process holds each of them (/proc/PID/fd); where another user's processes may not be read, it
says at least whose a socket is.
"""

import contextlib
import errno
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sparkdeploy import labels
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ContainerFact, ListedContainer
from sparkdeploy.shell import PROC, descendants

_LISTENS = "0A"
_ADDRESSES = frozenset(
    {
        "0100007F",  # 127.0.0.1
        "00000000",
        "00000000000000000000000000000000",  # [::], which takes IPv4 too
        "0000000000000000FFFF00000100007F",
        "0000000000000000FFFF000000000000",
    }
)
"""As the kernel of a little-endian machine writes those that take what is sent to 127.0.0.1."""


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


def port_owner(port: int, containers: Iterable[ListedContainer], proc: Path = PROC) -> PortOwner:
    """Return who has a port: a deployment before its process, of which a name may be unknown."""
    inodes: set[str] = set()
    with contextlib.suppress(OSError):
        inodes = {it.inode for it in _sockets_on(port, proc)}
    for fact in containers:
        # The parts of the other nodes carry the port of their head, who alone listens.
        if fact.is_running and not fact.rank and fact.labels.get(labels.PORT) == str(port):
            return PortOwner(deployment=fact.deployment, is_listening=bool(inodes))
    for process in sorted(proc.glob("[0-9]*")) if inodes else ():
        with contextlib.suppress(OSError):
            if not inodes.isdisjoint(_socket_inodes(process)):
                name = (process / "comm").read_text().strip()
                return PortOwner(process=name, pid=int(process.name))
    return PortOwner()


class Listener(Enum):
    CONTAINER = "container"
    NOBODY = "nobody"
    ANOTHER = "another"
    UNKNOWN = "unknown"
    """The kernel shows neither the container's processes nor a user to compare."""


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    inode: str
    uid: int
    address: str


def listener_of(fact: ContainerFact, port: int, proc: Path = PROC) -> Listener:
    """Return whether the sockets that listen on 127.0.0.1:`port` are this container's."""
    try:
        sockets = {it for it in _sockets_on(port, proc) if it.address in _ADDRESSES}
    except (OSError, ValueError):
        return Listener.UNKNOWN
    if not sockets:
        return Listener.NOBODY
    missing, is_complete = _not_held(fact, {it.inode for it in sockets}, proc)
    if missing and not is_complete and fact.uid is None:
        return Listener.UNKNOWN
    is_its_users = not is_complete and all(it.uid == fact.uid for it in sockets)
    return Listener.CONTAINER if not missing or is_its_users else Listener.ANOTHER


def listening_sockets(port: int, proc: Path = PROC) -> frozenset[str]:
    """Return the sockets that listen on 127.0.0.1:`port`, by which two looks can be compared."""
    try:
        return frozenset(it.inode for it in _sockets_on(port, proc) if it.address in _ADDRESSES)
    except (OSError, ValueError):
        return frozenset()


def _sockets_on(port: int, proc: Path) -> Iterator[ListeningSocket]:
    """Yield the sockets that listen on a port at whatever address; OSError without a table."""
    for table in ("tcp", "tcp6"):
        path = proc / "net" / table
        if table == "tcp6" and not path.exists():
            continue  # a machine without IPv6
        for line in path.read_text().splitlines()[1:]:
            words = line.split()
            address, _, number = words[1].partition(":")
            if words[3] == _LISTENS and int(number, 16) == port:
                yield ListeningSocket(words[9], int(words[7]), address)


def _not_held(fact: ContainerFact, inodes: set[str], proc: Path) -> tuple[set[str], bool]:
    """Return which sockets no process of a container holds, and whether all could be read."""
    missing = set(inodes)
    if fact.pid is None or not _is_of_container(fact, proc / str(fact.pid)):
        return missing, False
    is_complete = True
    for _, process in descendants(fact.pid, proc):
        try:
            missing -= set(_socket_inodes(process))
        except PermissionError:
            is_complete = False
        if not missing:
            break
    return missing, is_complete


def _is_of_container(fact: ContainerFact, process: Path) -> bool:
    """Whether the number that Docker says is this process here.

    Where the engine has process numbers of its own, another process has that number, or none.
    Docker names control groups, or else the files that it mounts, after the container.
    """
    for name in ("cgroup", "mountinfo"):
        with contextlib.suppress(OSError):
            if fact.container_id in (process / name).read_text(errors="replace"):
                return True
    return False


def _socket_inodes(process: Path) -> Iterator[str]:
    try:
        names = list((process / "fd").iterdir())
    except FileNotFoundError:
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            target = str(name.readlink())
            if target.startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")
