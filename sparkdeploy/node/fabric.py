"""A node's place among the others: what one script, run there once, tells of it, and questions that
take two nodes (does a full-size packet get across, and a connection?)."""

import errno
import ipaddress
import json
import re
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy.errors import NodeError
from sparkdeploy.node.node import Node, at_once
from sparkdeploy.shell import Completed

SCRIPT = Path(__file__).with_name("fabric.sh").read_text(encoding="utf-8")
IP_AND_ICMP_BYTES = 28
CONNECT_TIMEOUT_S = 5
LISTEN_TRIES = 2
LISTEN_TIMEOUT_S = 20.0
"""A busy machine takes its time to start a Python."""
LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    server.settimeout(20)
    server.accept()
"""
RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    server.settimeout(20)
    peer, buffer, count = server.accept()[0], bytearray(1 << 20), 0
    peer.settimeout(5)
    begun = time.monotonic()
    while size := peer.recv_into(buffer):
        count += size
    print(int(count / (time.monotonic() - begun)), flush=True)
"""
SEND = """
import socket, sys, time
where = sys.argv[2], int(sys.argv[3])
with socket.create_connection(where, 5, (sys.argv[1], 0)) as peer:
    end, data = time.monotonic() + float(sys.argv[4]), bytes(1 << 20)
    while time.monotonic() < end:
        peer.sendall(data)
"""
MEASURED_S = 0.5
RDMA_ACTIVE = "ACTIVE"
_PCIE = re.compile(r"pcie (\S{1,64}) (\d{1,3}) (\d{1,3}) (\d{1,3}(?:\.\d)?) (\d{1,3}(?:\.\d)?)")
_WAS_SENT = "packets transmitted"
"""In what every ping says at its end, whether anything came back or not."""
FALLBACK_GID_INDEX = 3
"""Where RoCE v2 over IPv4 usually is on a ConnectX-7 with one address."""
# enp1s0f1np1 and enP2p1s0f1np1 are one port on two PCIe links.
_TWIN = re.compile(r"^(?:en|roce)(?:P\d+)?(p\d+s\d+f\d+)(?:np\d+)?$")


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface with its IPv4 addresses, each with its prefix length."""

    name: str
    is_up: bool
    mtu: int
    addresses: tuple[str, ...]
    speed_mbit_s: int | None = None

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(str(ipaddress.IPv4Interface(item).network) for item in self.addresses)


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device, the interface it belongs to, and where RoCE v2 over IPv4 is in its table."""

    name: str
    interface: str
    is_active: bool
    gid_index: int | None
    pcie_gt_s: float | None = None
    """What its link to the processor carries now: lanes times GT/s of each."""
    pcie_most_gt_s: float | None = None
    """What that link could carry: of both of its ends the lesser."""


@dataclass(frozen=True, slots=True)
class FabricFact:
    """Who a node is to the others: its user there, its interfaces and what is installed."""

    host_name: str
    uid: int
    gid: int
    home: str
    clock_s: float
    """Seconds since 1970, as that node's clock had it."""
    interfaces: tuple[Interface, ...]
    rdma: tuple[RdmaDevice, ...] = ()
    tools: frozenset[str] = frozenset()
    clock_skew_s: float = 0.0

    def interface(self, name: str) -> Interface | None:
        return next((item for item in self.interfaces if item.name == name), None)

    def rdma_device(self, name: str) -> RdmaDevice | None:
        return next((item for item in self.rdma if item.name == name), None)


def look_at_fabric(node: Node) -> FabricFact:
    """Ask a node with one script; NodeError when it does not tell all of it."""
    before_s = time.time()
    done = node.script(SCRIPT)
    after_s = time.time()
    fact = parse_fabric(node.name, done)
    # Its clock was read between our two looks at ours.
    late_s, early_s = fact.clock_s - before_s, fact.clock_s - after_s
    skew_s = 0.0 if early_s <= 0 <= late_s else min(late_s, early_s, key=abs)
    return replace(fact, clock_skew_s=skew_s)


def parse_fabric(name: str, done: Completed) -> FabricFact:
    """Return what SCRIPT told; NodeError names the machine when it cannot be read."""
    try:
        return read_fabric(done.stdout)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NodeError(
            f"{name}: what it says of its network cannot be read: {error}",
            hint=f"on {name}: id; ip -j address show",
            detail=done.stderr.strip() or None,
        ) from error


def read_fabric(text: str) -> FabricFact:
    """Read what SCRIPT printed; ValueError when a part of it is missing."""
    parts = _sections(text)
    if len(parts["who"]) < 4:
        raise ValueError("the node did not tell its name, user, group and home")
    host_name, uid, gid, home = parts["who"][:4]
    words = (line.split() for line in parts["speeds"])
    # Of what has no speed the kernel says -1, or refuses to say it.
    speeds = {it[0]: int(it[1]) for it in words if len(it) == 2 and it[1].isdecimal()}
    return FabricFact(
        host_name=host_name,
        uid=int(uid),
        gid=int(gid),
        home=home,
        clock_s=float(parts["clock"][0]),
        interfaces=tuple(
            replace(it, speed_mbit_s=speeds.get(it.name))
            for it in read_interfaces("".join(parts["addresses"]))
        ),
        rdma=tuple(_rdma(parts["rdma"])),
        tools=frozenset(line.rpartition("/")[2] for line in parts["tools"]),
    )


def twin_key(name: str) -> str | None:
    """Return what both twins of a QSFP port have in common; None for any other interface."""
    found = _TWIN.match(name)
    return found[1] if found else None


def _sections(text: str) -> Mapping[str, list[str]]:
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            current = parts.setdefault(line.removeprefix("== "), [])
        elif line.strip():
            current.append(line)
    missing = {"who", "clock", "addresses", "tools"} - set(parts)
    if missing:
        raise ValueError(f"the node did not tell its {', '.join(sorted(missing))}")
    return {name: parts.get(name, []) for name in (*parts, "rdma", "speeds")}


def read_interfaces(text: str) -> tuple[Interface, ...]:
    """Read `ip -json address`; ValueError, LookupError, TypeError or AttributeError for others."""
    return tuple(
        Interface(
            name=item["ifname"],
            # A virtual link's state may be UNKNOWN; LOWER_UP is the carrier itself.
            is_up={"UP", "LOWER_UP"} <= set(item.get("flags") or ()),
            mtu=int(item.get("mtu") or 0),
            addresses=tuple(
                str(ipaddress.IPv4Interface(f"{entry['local']}/{entry['prefixlen']}"))
                for entry in item.get("addr_info") or ()
                if entry.get("family") == "inet"
            ),
        )
        for item in json.loads(text or "[]")
        if "ifname" in item
    )


def _rdma(lines: list[str]) -> Iterator[RdmaDevice]:
    roce_v2: dict[str, list[int]] = {}
    for line in lines:
        word, name, *rest = line.split(maxsplit=4)
        is_roce_v2 = word == "gid" and len(rest) == 3 and rest[2].strip() == "RoCE v2"
        if is_roce_v2 and ipaddress.IPv6Address(rest[1]).ipv4_mapped is not None:
            roce_v2.setdefault(name, []).append(int(rest[0]))
    links: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        if (link := _PCIE.fullmatch(line.strip())) is not None:
            width, most_width, speed, most_speed = map(float, link.groups()[1:])
            links.setdefault(link[1], []).append((width * speed, most_width * most_speed))
    for line in lines:
        words = line.split()
        if words[0] == "device" and len(words) > 2:
            ends = links.get(words[1], [])
            yield RdmaDevice(
                name=words[1],
                interface=words[2],
                is_active=words[-1] == RDMA_ACTIVE,
                gid_index=min(roce_v2.get(words[1], ()), default=None),
                pcie_gt_s=ends[0][0] if ends else None,
                pcie_most_gt_s=min((most for _, most in ends if most), default=None),
            )


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet of full size that was sent with `do not fragment`."""

    source: str
    target: str
    interface: str
    mtu: int
    arrived: bool | None
    """None where the source cannot run `ping`: `failure` says why."""
    failure: str = ""


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
    done = node.script(script)
    if done.exit_code == 0 or _WAS_SENT in done.stdout:
        arrived = done.exit_code == 0
        return Packet(node.name, peer.name, ours.interface, mtu, arrived)
    # There is none, it may not open a socket, or it is one that knows no such option.
    words = (done.stderr.strip() or "ping does not run").splitlines()[0][:160]
    return Packet(node.name, peer.name, ours.interface, mtu, None, words)


@dataclass(frozen=True, slots=True)
class Rate:
    """What one TCP connection carried over a link in a short time."""

    source: str
    target: str
    interface: str
    speed_mbit_s: int | None
    """What the link could carry, as its driver says."""
    bytes_s: int | None = None
    failure: str = ""


def measure_rate(node: Node, peer: Node, port: int, speed_mbit_s: int | None) -> Rate:
    """Send to the same port of another node for MEASURED_S, by the Python that is there."""
    ours, theirs = node.entry.fabric[port], peer.entry.fabric[port]
    rate = Rate(node.name, peer.name, ours.interface, speed_mbit_s)
    with peer.start(f"exec python3 -I -c {shlex.quote(RECEIVE)} {theirs.ip}") as program:
        heard = (program.read_until("\n", timeout_s=LISTEN_TIMEOUT_S) or "").strip()
        if not heard.isdecimal():
            return replace(rate, failure=f"python3 on {peer.name} could not listen")
        words = f"{ours.ip} {theirs.ip} {heard} {MEASURED_S}"
        done = node.script(f"python3 -I -c {shlex.quote(SEND)} {words}", timeout_s=LISTEN_TIMEOUT_S)
        if done.exit_code != 0:
            said = done.stderr.strip().splitlines() or ["python3 did not send"]
            return replace(rate, failure=said[-1][:160])
        counted = (program.read_until("\n", timeout_s=LISTEN_TIMEOUT_S) or "").strip()
    return replace(rate, bytes_s=int(counted) if counted.isdecimal() else None)


def connect_to_here(here: Node, workers: Sequence[Node], port: int) -> list[Connection]:
    """Listen once on this machine's fabric address, and have all workers connect; 0: any port."""
    address = here.entry.ip

    def all_connect(used: int) -> list[Connection]:
        def connect(worker: Node) -> Connection:
            refusal = _connect_from(worker, address, used)
            return Connection(worker.name, here.name, address, port, refusal)

        return at_once(connect, workers)

    found: list[Connection] = []
    for _ in range(LISTEN_TRIES):
        try:
            listener = socket.create_server((address, port), backlog=max(len(workers), 1))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                words = f"cannot listen: {error.strerror or error}"
                return [Connection(item.name, here.name, address, port, words) for item in workers]
            # Somebody listens already, such as the deployment that is to be replaced. One that
            # was just ended has gone meanwhile, and the port with it: then it is tried once more.
            found = all_connect(port)
            if not any(item.error for item in found):
                break
            continue
        with listener:
            return all_connect(int(listener.getsockname()[1]))
    return found


def connect_to_worker(here: Node, worker: Node) -> Connection:
    """Have a worker listen on any port of its fabric address, and connect from here."""
    address = worker.entry.ip
    error = "python3 there could not listen"
    with worker.start(f"exec python3 -I -c {shlex.quote(LISTEN)} {address}") as program:
        port = (program.read_until("\n", timeout_s=LISTEN_TIMEOUT_S) or "").strip()
        if port.isdigit():
            try:
                socket.create_connection((address, int(port)), CONNECT_TIMEOUT_S).close()
                error = ""
            except OSError as refused:
                error = str(refused)
    return Connection(here.name, worker.name, address, 0, error)


def _connect_from(machine: Node, address: str, port: int) -> str:
    script = f"timeout {CONNECT_TIMEOUT_S} bash -c 'exec 3<>/dev/tcp/{address}/{port}'"
    done = machine.script(script)
    if done.exit_code == 0:
        return ""
    reason = done.stderr.strip().rpartition(": ")[2]
    return reason or f"no answer within {CONNECT_TIMEOUT_S} s"
