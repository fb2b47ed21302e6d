"""The RDMA adapters that an engine's container sees, compared with config.yaml."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from sparkdeploy.checks.report import Finding, Verdict, node_finding
from sparkdeploy.image.stages import RDMA_PACKAGES
from sparkdeploy.node.cluster import ClusterNode, FabricPort
from sparkdeploy.units import format_bytes

ACTIVE, ETHERNET, ROCE_V2 = "PORT_ACTIVE", "Ethernet", "RoCE v2"
FULL_MTU_BYTES = 4096
"""The largest of an RDMA packet; an interface with an MTU of 9000 allows it."""
_DEVICE = re.compile(r"^hca_id:[ \t]+(\S+)", re.MULTILINE)
_PORT = re.compile(r"^[ \t]+port:[ \t]+\d+", re.MULTILINE)
_NO_ADAPTERS = ("No IB devices found", "Failed to open device")
_VALUE = re.compile(r"^[ \t]+(state|active_mtu|link_layer):[ \t]+(\w+)", re.MULTILINE)
_GID = re.compile(r"^[ \t]+GID\[[ \t]*(\d+)\]:[ \t]+([0-9a-f:.]+)(?:, (RoCE v[12]))?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Adapter:
    """Port 1 of an RDMA device, by ibv_devinfo."""

    name: str
    state: str
    link: str
    """`Ethernet`, or `InfiniBand` where the port was set to that."""
    mtu_bytes: int | None
    gids: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Address and kind: `RoCE v1` or `RoCE v2`, or nothing where ibv_devinfo is too old to say."""


@dataclass(frozen=True, slots=True)
class RdmaFact:
    """The answer of a program inside the container (image/inside/rdma.py)."""

    user: str
    """uid:gid."""
    missing: dict[str, str]
    """Why a library cannot be opened, by its name."""
    memlock_bytes: int | None
    """None: unlimited."""
    nodes: dict[str, str]
    """Why a device file may not be opened, by its path; empty where it may."""
    devinfo: str | None
    """What ibv_devinfo says; None where the image has none."""


def read_rdma(text: str) -> RdmaFact | None:
    """Read the program's answer, a JSON object; None for anything else."""
    try:
        return TypeAdapter(RdmaFact).validate_json(text, strict=True)
    except ValueError:
        return None


def _unread(devinfo: str | None) -> str:
    """Return why ibv_devinfo lists no adapter, where that says nothing about the adapters."""
    if devinfo is None:
        return "no ibv_devinfo in it"
    lines = [line.strip() for line in devinfo.splitlines() if line.strip()]
    if any(line in _NO_ADAPTERS for line in lines):
        return ""
    return lines[-1] if lines else "ibv_devinfo printed nothing"


def read_devinfo(text: str) -> tuple[Adapter, ...]:
    """Read `ibv_devinfo -v`; of several ports the first counts, as NCCL takes device names only."""
    _, *parts = _DEVICE.split(text)
    return tuple(map(_adapter, parts[::2], parts[1::2]))


def _adapter(name: str, text: str) -> Adapter:
    _, *ports = _PORT.split(text)
    first = ports[0] if ports else text
    values = dict(_VALUE.findall(first))
    return Adapter(
        name=name,
        state=values.get("state", "unknown"),
        link=values.get("link_layer", ETHERNET),
        mtu_bytes=int(mtu) if (mtu := values.get("active_mtu", "")).isdecimal() else None,
        gids={int(index): (address, kind) for index, address, kind in _GID.findall(first)},
    )


def chosen_adapters(env: Mapping[str, str], own: Iterable[str]) -> tuple[str, ...]:
    """Return which adapters NCCL takes by its variable NCCL_IB_HCA: of a node's own, and others.

    A name counts for all that begin with it, unless `=` precedes the first; `^` leaves out
    what is named. A port may follow each name. What is named and none of the node's own stays as
    it is: the container may see more.
    """
    value = env.get("NCCL_IB_HCA", "").strip()
    leaves_out, value = value.startswith("^"), value.removeprefix("^")
    is_exact, value = value.startswith("="), value.removeprefix("=")
    items = (item.strip().partition(":")[0] for item in value.split(","))
    named = tuple(item for item in items if item)

    def means(name: str, adapter: str) -> bool:
        return adapter == name if is_exact else adapter.startswith(name)

    own = tuple(own)
    if not named:
        return own
    meant = [it for it in own if any(means(name, it) for name in named) != leaves_out]
    others = [it for it in named if not any(means(it, adapter) for adapter in own)]
    return tuple(meant if leaves_out else (*meant, *others))


def rdma_checks(node: ClusterNode, fact: RdmaFact, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what keeps NCCL from the adapters, as it would meet it; `env` is the container's."""
    if fact.missing:
        seen = f"RDMA libraries of the image: {'; '.join(fact.missing.values())}"
        fix = f"install {', '.join(RDMA_PACKAGES)} in that image, or take an engine that "
        fix += "sparkdeploy builds"
        expected = "libibverbs and the provider of mlx5"
        yield node_finding("libraries", node.name, False, seen, expected, fix)
        return
    rights, limit = _rights(node, fact), fact.memlock_bytes
    yield rights
    seen = f"memory that may be locked: {'unlimited' if limit is None else format_bytes(limit)}"
    fix = f"on {node.name}: LimitMEMLOCK=infinity for docker.service; rootless Docker cannot"
    yield node_finding("memlock", node.name, limit is None, seen, "unlimited", fix)
    if rights.verdict is not Verdict.FAIL:
        yield from _chosen_checks(node, fact, env)


def _chosen_checks(node: ClusterNode, fact: RdmaFact, env: Mapping[str, str]) -> Iterator[Finding]:
    seen = {adapter.name: adapter for adapter in read_devinfo(fact.devinfo or "")}
    if not seen and (reason := _unread(fact.devinfo)):
        fix = f"that image needs {RDMA_PACKAGES[-1]}; on {node.name}: ibv_devinfo"
        reason = f"adapters in the image: {reason}"
        yield node_finding("adapters", node.name, Verdict.NOT_SEEN, reason, fix=fix)
        return
    chosen = chosen_adapters(env, [port.rdma for port in node.fabric if port.rdma])
    ports = [port for port in node.fabric if port.rdma in chosen]
    if not ports and not set(chosen_adapters(env, seen)) & set(seen):
        there = ", ".join(seen) or "nothing is there"
        none = f"NCCL_IB_HCA={env.get('NCCL_IB_HCA', '')}: it means none of: {there}"
        fix = "correct serve.env.NCCL_IB_HCA in the recipe, or leave it out"
        yield node_finding("adapters", node.name, False, none, "an adapter", fix)
    for port in ports:
        yield from _adapter_checks(node, port, seen)
    # Without a number NCCL looks for one itself.
    index = env.get("NCCL_IB_GID_INDEX", "")
    if index.isdecimal():
        yield from _gid_checks(node, ports, seen, int(index))


def _rights(node: ClusterNode, fact: RdmaFact) -> Finding:
    subject, expected = "/dev/infiniband in the container", f"user {fact.user} may open it"
    refused = [f"{path}: {why}" for path, why in fact.nodes.items() if why]
    if not fact.nodes:
        seen = "no adapter in it"
        fix = f"on {node.name}: sudo modprobe ib_uverbs mlx5_ib; ls -l /dev/infiniband"
    elif refused:
        seen = f"user {fact.user} may not open {'; '.join(refused)}"
        fix = f"on {node.name}: sudo chmod a+rw /dev/infiniband/uverbs* (for good: docs/cluster.md)"
    else:
        seen, fix = f"user {fact.user} may open {len(fact.nodes)} of it", ""
    is_good = bool(fact.nodes) and not refused
    return node_finding("devices", node.name, is_good, f"{subject}: {seen}", expected, fix)


def _adapter_checks(
    node: ClusterNode, port: FabricPort, seen: Mapping[str, Adapter]
) -> Iterator[Finding]:
    adapter, subject = seen.get(port.rdma or ""), f"{port.rdma} in the container"
    if adapter is None:
        state, expected = f"not seen; it sees: {', '.join(seen) or 'none'}", "an adapter"
        fix = f"correct `rdma:` in config.yaml; on {node.name}: rdma link; ibv_devinfo"
    elif adapter.link != ETHERNET:
        state, expected = adapter.link, ETHERNET
        fix = "set the port to Ethernet (mlxconfig, LINK_TYPE_P1=2), as RoCE needs it"
    else:
        state, expected = adapter.state, ACTIVE
        fix = f"is the cable in? on {node.name}: sudo ip link set {port.interface} up; rdma link"
    yield node_finding("adapters", node.name, state == ACTIVE, f"{subject}: {state}", expected, fix)
    if adapter is not None and state == ACTIVE:
        yield _mtu(node, port, adapter)


def _mtu(node: ClusterNode, port: FabricPort, adapter: Adapter) -> Finding:
    is_full = adapter.mtu_bytes is None or adapter.mtu_bytes >= FULL_MTU_BYTES
    seen = f"{port.rdma} packets: {adapter.mtu_bytes or 'unknown'} bytes"
    fix = f"on every node: sudo ip link set {port.interface} mtu 9000 (for good: netplan)"
    result, expected = is_full or Verdict.WARN, f"{FULL_MTU_BYTES} bytes"
    return node_finding("rdma_mtu", node.name, result, seen, expected, fix)


def _gid_checks(
    node: ClusterNode, ports: Sequence[FabricPort], seen: Mapping[str, Adapter], index: int
) -> Iterator[Finding]:
    active = {
        port: adapter
        for port in ports
        if (adapter := seen.get(port.rdma or "")) is not None
        and (adapter.state, adapter.link) == (ACTIVE, ETHERNET)
    }
    right = [
        {
            at
            for at, (address, kind) in it.gids.items()
            if (kind, _ipv4(address)) == (ROCE_V2, port.ip)
        }
        for port, it in active.items()
    ]
    for (port, adapter), fitting in zip(active.items(), right, strict=True):
        subject, expected = f"{port.rdma} GID {index}", f"{ROCE_V2} of {port.ip}"
        if index in fitting:
            yield node_finding("gid", node.name, True, f"{subject}: {expected}")
            continue
        if adapter.gids and not any(kind for _, kind in adapter.gids.values()):
            unknown = f"{subject}: ibv_devinfo of that image does not say the kinds of GIDs"
            yield node_finding("gid", node.name, Verdict.NOT_SEEN, unknown)
            continue
        address, kind = adapter.gids.get(index, ("", ""))
        value = f"{kind} of {_ipv4(address) or address}" if address else "not set"
        fix = f"on {node.name}: give {port.interface} the one address {port.address} (netplan)"
        # A number of the recipe's would be every node's; this one looks for its own.
        fix += "; a NCCL_IB_GID_INDEX that you typed goes before it: leave that out"
        yield node_finding("gid", node.name, False, f"{subject}: {value}", expected, fix)


def _ipv4(address: str) -> str | None:
    """Return a GID's IPv4 address; None for a link-local one."""
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return None
    return str(mapped) if mapped is not None else None
