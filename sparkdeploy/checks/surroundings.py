"""What the doctor looks at beside the facts of a plan, and how each answer is read."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTENING = "0A"
SOCKET = re.compile(
    r"^ *\d+: (?P<address>[0-9A-F]{8,32}):(?P<port>[0-9A-F]{4}) [0-9A-F:]+ (?P<state>[0-9A-F]{2}) ",
    re.MULTILINE | re.ASCII,
)
"""A row of /proc/net/tcp or tcp6."""
UNIT = re.compile(r"^sparkdeploy-(.+)\.service$", re.MULTILINE)

TargetName = Literal["hub", "package_index", "container_registry"]


@dataclass(frozen=True, slots=True)
class Target:
    """A host of the outside world that something needs."""

    name: TargetName
    host: str
    port: int
    is_proxy: bool = False
    """The host is the proxy through which the real one is reached."""


@dataclass(frozen=True, slots=True)
class Places:
    """What is to be looked at: our own folders by role, and hosts."""

    folders: Mapping[str, str]
    """By role: hub_cache, state, cache, data; lock, which all users share."""
    other_hub_caches: tuple[str, ...] = ()
    """Where the same models may lie a second time."""
    model_folder: str = ""
    """The recipe's model in a hub cache: `models--ORG--NAME`."""
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of ours; None means that it is not there yet."""

    role: str
    path: str
    owner_uid: int | None = None
    is_writable: bool = True


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface."""

    name: str
    mtu: int
    is_up: bool
    networks: tuple[str, ...] = ()
    """IPv4 networks of its addresses, such as 192.168.177.0/24."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that was read; None or an empty tuple where nothing could be."""

    architecture: str | None = None
    system: str | None = None
    vmstat: str | None = None
    folders: tuple[Folder, ...] = ()
    duplicates: tuple[str, ...] = ()
    """Further copies of the recipe's model in other hub caches."""
    open_ports: frozenset[int] | None = None
    """Ports on which someone listens on every address."""
    reached: Mapping[Target, bool] = field(default_factory=dict)
    links: tuple[Link, ...] | None = None
    localhost: tuple[str, ...] = ()
    """Addresses of `localhost` in the order in which programs try them."""
    booting: frozenset[str] = frozenset()
    """Deployments with a systemd unit."""


def system_name(os_release: str, dgx_release: str | None) -> str | None:
    """Return the distribution's name, with the version of DGX OS where it is one."""
    name = _assignments(os_release).get("PRETTY_NAME")
    dgx = _assignments(dgx_release or "")
    version = dgx.get("DGX_SWBUILD_VERSION") or dgx.get("DGX_OTA_VERSION")
    return f"{name}, DGX OS {version}" if name and version else name


def open_ports(*tables: str) -> frozenset[int]:
    """Return the ports of /proc/net/tcp and tcp6 with a listener on every address."""
    rows = (match for table in tables for match in SOCKET.finditer(table))
    return frozenset(
        int(row["port"], 16)
        for row in rows
        if row["state"] == LISTENING and set(row["address"]) == {"0"}
    )


def read_links(text: str) -> tuple[Link, ...]:
    """Read `ip -json addr`; raises ValueError for anything else."""
    return tuple(
        Link(
            name=item["ifname"],
            mtu=int(item["mtu"]),
            is_up="LOWER_UP" in item.get("flags", ()),
            networks=tuple(
                str(
                    ipaddress.ip_network(f"{address['local']}/{address['prefixlen']}", strict=False)
                )
                for address in item.get("addr_info", ())
                if address.get("family") == "inet"
            ),
        )
        for item in json.loads(text)
        if "ifname" in item
    )


def units(listing: str) -> frozenset[str]:
    """Return the deployments whose units stand in a listing of file names."""
    return frozenset(UNIT.findall(listing))


def _assignments(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs if value}
