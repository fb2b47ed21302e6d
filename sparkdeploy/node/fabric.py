"""What one script, run once on a node, tells of it. Reading the text is pure."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.node.facts import parse_meminfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCRIPT = r"""
echo "== who"; uname -n; uname -m; id -u; id -g; echo "$HOME"
echo "== clock"; date +%s.%N
echo "== addresses"; ip -j address show
echo "== memory"; cat /proc/meminfo
echo "== gpu"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1
echo "== rdma"
for device in /sys/class/infiniband/*; do
  [ -e "$device" ] || continue
  name=${device##*/}
  echo "device $name $(ls "$device/device/net" 2>/dev/null | head -n 1) \
$(cat "$device/ports/1/state" 2>/dev/null)"
  for type in "$device"/ports/1/gid_attrs/types/*; do
    index=${type##*/}
    kind=$(cat "$type" 2>/dev/null) || continue
    echo "gid $name $index $(cat "$device/ports/1/gids/$index") $kind"
  done
done
echo "== disk"; df -B1 --output=avail "$HOME" | tail -n 1
echo "== listening"; ss -Hltn 2>/dev/null
echo "== tools"
for tool in rsync ping python3 sha256sum; do command -v "$tool" || true; done
"""
RDMA_ACTIVE = "ACTIVE"
FALLBACK_GID_INDEX = 3
"""Where RoCE v2 over IPv4 usually is (field.md section 3)."""
_TWIN = re.compile(r"^(?:en|roce)(?:P\d+)?(p\d+s\d+f\d+)(?:np\d+)?$")


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface with its IPv4 addresses, each with its prefix length."""

    name: str
    is_up: bool
    mtu: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device, the interface it belongs to, and where RoCE v2 over IPv4 is in its table."""

    name: str
    interface: str
    is_active: bool
    gid_index: int | None


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """A node as it was seen."""

    host_name: str
    architecture: str
    uid: int
    gid: int
    home: str
    clock_s: float
    """Seconds since 1970, as that node's clock had it."""
    interfaces: tuple[Interface, ...]
    memory_total_bytes: int
    memory_available_bytes: int
    gpu: str | None
    driver: str | None
    rdma: tuple[RdmaDevice, ...]
    home_free_bytes: int | None
    listening: tuple[int, ...]
    tools: frozenset[str]

    def interface(self, name: str) -> Interface | None:
        """Return an interface by name."""
        return next((item for item in self.interfaces if item.name == name), None)

    def rdma_device(self, name: str) -> RdmaDevice | None:
        """Return an RDMA device by name."""
        return next((item for item in self.rdma if item.name == name), None)


def read_facts(text: str) -> FabricFacts:
    """Read what SCRIPT printed; ValueError when a part of it is missing."""
    parts = _sections(text)
    host_name, architecture, uid, gid, home = parts["who"][:5]
    memory = parse_meminfo("\n".join(parts["memory"]))
    gpu, _, driver = next(iter(parts["gpu"]), "").partition(",")
    disk = next(iter(parts["disk"]), "").strip()
    return FabricFacts(
        host_name=host_name,
        architecture=architecture,
        uid=int(uid),
        gid=int(gid),
        home=home,
        clock_s=float(parts["clock"][0]),
        interfaces=tuple(_interfaces("".join(parts["addresses"]))),
        memory_total_bytes=memory.get("MemTotal", 0),
        memory_available_bytes=memory.get("MemAvailable", 0),
        gpu=gpu.strip() or None,
        driver=driver.strip() or None,
        rdma=tuple(_rdma(parts["rdma"])),
        home_free_bytes=int(disk) if disk.isdigit() else None,
        listening=tuple(sorted(set(_ports(parts["listening"])))),
        tools=frozenset(line.rpartition("/")[2] for line in parts["tools"]),
    )


def twin_key(name: str) -> str | None:
    """Return what both twins of a QSFP port have in common; None for any other interface.

    enp1s0f1np1 and enP2p1s0f1np1 are one port on two PCIe links (field.md section 3).
    """
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
    missing = {"who", "clock", "addresses", "memory", "tools"} - set(parts)
    if missing:
        raise ValueError(f"the node did not tell its {', '.join(sorted(missing))}")
    return {name: parts.get(name, []) for name in (*parts, "gpu", "rdma", "disk", "listening")}


def _interfaces(text: str) -> Iterator[Interface]:
    for item in json.loads(text or "[]"):
        flags = item.get("flags") or ()
        yield Interface(
            name=item["ifname"],
            # A virtual link's state may be UNKNOWN; LOWER_UP is the carrier itself.
            is_up="UP" in flags and "LOWER_UP" in flags,
            mtu=int(item.get("mtu") or 0),
            addresses=tuple(
                f"{entry['local']}/{entry['prefixlen']}"
                for entry in item.get("addr_info") or ()
                if entry.get("family") == "inet"
            ),
        )


def _rdma(lines: list[str]) -> Iterator[RdmaDevice]:
    gids: dict[str, list[tuple[int, str, str]]] = {}
    for line in lines:
        word, name, *rest = line.split(maxsplit=4)
        if word == "gid" and len(rest) == 3:
            gids.setdefault(name, []).append((int(rest[0]), rest[1], rest[2]))
    for line in lines:
        words = line.split()
        if words[0] == "device" and len(words) > 2:
            yield RdmaDevice(
                name=words[1],
                interface=words[2],
                is_active=words[-1] == RDMA_ACTIVE,
                gid_index=_roce_v2(gids.get(words[1], [])),
            )


def _roce_v2(gids: list[tuple[int, str, str]]) -> int | None:
    for index, gid, kind in sorted(gids):
        if kind.strip() == "RoCE v2" and ipaddress.IPv6Address(gid).ipv4_mapped is not None:
            return index
    return None


def _ports(lines: list[str]) -> Iterator[int]:
    for line in lines:
        words = line.split()
        port = words[3].rpartition(":")[2] if len(words) > 3 else ""
        if port.isdigit():
            yield int(port)
