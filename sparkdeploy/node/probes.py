"""Questions that take two nodes: does a full-size packet get across, and a connection?"""

from __future__ import annotations

import contextlib
import errno
import shlex
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.node.fabric import SCRIPT, FabricFacts, read_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.machines import ClusterMachine

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
class Seen:
    """A node's facts, and how far its clock was from ours when it told them."""

    facts: FabricFacts
    clock_skew_s: float


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


def look(machine: ClusterMachine) -> Seen:
    """Ask a node everything that it knows by itself."""
    before_s = time.time()
    done = machine.run(SCRIPT)
    after_s = time.time()
    facts = read_facts(done.stdout)
    # Its clock was read between our two looks at ours.
    late_s, early_s = facts.clock_s - before_s, facts.clock_s - after_s
    skew_s = 0.0 if early_s <= 0 <= late_s else min(late_s, early_s, key=abs)
    return Seen(facts, skew_s)


def send_full_size(machine: ClusterMachine, peer: ClusterMachine, port: int, mtu: int) -> Packet:
    """Send packets of the interface's own MTU to the same port of another node."""
    ours, theirs = machine.node.fabric[port], peer.node.fabric[port]
    size = mtu - IP_AND_ICMP_BYTES
    script = f"ping -M do -c 2 -i 0.2 -W 1 -s {size} -I {ours.ip} {theirs.ip}"
    arrived = machine.run(script).exit_code == 0
    return Packet(machine.name, peer.name, ours.interface, mtu, arrived)


def connect_to_here(here: ClusterMachine, worker: ClusterMachine, port: int) -> Connection:
    """Listen on this machine's fabric address, and have a worker connect; 0 takes any port."""
    address = here.node.ip
    try:
        listener = socket.create_server((address, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            words = f"cannot listen: {error.strerror or error}"
            return Connection(worker.name, here.name, address, port, words)
        # Somebody listens already, such as the deployment that is to be replaced.
        refusal = _connect_from(worker, address, port)
        return Connection(worker.name, here.name, address, port, refusal)
    with listener:
        refusal = _connect_from(worker, address, listener.getsockname()[1])
    return Connection(worker.name, here.name, address, port, refusal)


def connect_to_worker(here: ClusterMachine, worker: ClusterMachine) -> Connection:
    """Have a worker listen on any port of its fabric address, and connect from here."""
    address = worker.node.ip
    with _listening(worker, address) as port:
        if port is None:
            return Connection(here.name, worker.name, address, 0, "python3 did not listen there")
        try:
            socket.create_connection((address, port), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            return Connection(here.name, worker.name, address, 0, str(error))
    return Connection(here.name, worker.name, address, 0)


@contextlib.contextmanager
def _listening(machine: ClusterMachine, address: str) -> Iterator[int | None]:
    program = machine.start(f"exec python3 -c {shlex.quote(LISTEN)} {address}")
    try:
        said = program.read_until("\n", timeout_s=LISTEN_TIMEOUT_S)
        yield int(said) if said and said.strip().isdigit() else None
    finally:
        program.end()


def _connect_from(machine: ClusterMachine, address: str, port: int) -> str:
    script = f"timeout {CONNECT_TIMEOUT_S} bash -c 'exec 3<>/dev/tcp/{address}/{port}'"
    done = machine.run(script)
    if done.exit_code == 0:
        return ""
    said = done.stderr.strip().rpartition(": ")[2]
    return said or f"no answer within {CONNECT_TIMEOUT_S} s"
