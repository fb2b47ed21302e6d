"""Questions that take two nodes: does a full-size packet get across, and a connection?"""

from __future__ import annotations

import contextlib
import errno
import shlex
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.node.node import at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.node.node import Node

IP_AND_ICMP_BYTES = 28
CONNECT_TIMEOUT_S = 5
LISTEN_TIMEOUT_S = 20.0
"""A busy machine takes its time to start a Python."""
LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    server.settimeout(20)
    server.accept()
"""


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet of full size that was sent with `do not fragment`."""

    source: str
    target: str
    interface: str
    mtu: int
    arrived: bool


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection that was tried; `error` is empty when it stood."""

    source: str
    target: str
    address: str
    port: int
    error: str = ""


def send_full_size(node: Node, peer: Node, port: int, mtu: int) -> Packet:
    """Send packets of the interface's own MTU to the same port of another node."""
    ours, theirs = node.entry.fabric[port], peer.entry.fabric[port]
    size = mtu - IP_AND_ICMP_BYTES
    script = f"ping -M do -c 2 -i 0.2 -W 1 -s {size} -I {ours.ip} {theirs.ip}"
    arrived = node.script(script).exit_code == 0
    return Packet(node.name, peer.name, ours.interface, mtu, arrived)


def connect_to_here(here: Node, workers: Sequence[Node], port: int) -> list[Connection]:
    """Listen once on this machine's fabric address, and have all workers connect; 0: any port."""
    address = here.entry.ip

    def all_connect(used: int) -> list[Connection]:
        def connect(worker: Node) -> Connection:
            refusal = _connect_from(worker, address, used)
            return Connection(worker.name, here.name, address, port, refusal)

        return at_once(connect, workers)

    try:
        listener = socket.create_server((address, port), backlog=max(len(workers), 1))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            # Somebody listens already, such as the deployment that is to be replaced.
            return all_connect(port)
        words = f"cannot listen: {error.strerror or error}"
        return [Connection(worker.name, here.name, address, port, words) for worker in workers]
    with listener:
        return all_connect(int(listener.getsockname()[1]))


def connect_to_worker(here: Node, worker: Node) -> Connection:
    """Have a worker listen on any port of its fabric address, and connect from here."""
    address = worker.entry.ip
    with _listening(worker, address) as port:
        if port is None:
            return Connection(here.name, worker.name, address, 0, "python3 there could not listen")
        try:
            socket.create_connection((address, port), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            return Connection(here.name, worker.name, address, 0, str(error))
    return Connection(here.name, worker.name, address, 0)


@contextlib.contextmanager
def _listening(machine: Node, address: str) -> Iterator[int | None]:
    with machine.start(f"exec python3 -c {shlex.quote(LISTEN)} {address}") as program:
        said = program.read_until("\n", timeout_s=LISTEN_TIMEOUT_S)
        yield int(said) if said and said.strip().isdigit() else None


def _connect_from(machine: Node, address: str, port: int) -> str:
    script = f"timeout {CONNECT_TIMEOUT_S} bash -c 'exec 3<>/dev/tcp/{address}/{port}'"
    done = machine.script(script)
    if done.exit_code == 0:
        return ""
    said = done.stderr.strip().rpartition(": ")[2]
    return said or f"no answer within {CONNECT_TIMEOUT_S} s"
