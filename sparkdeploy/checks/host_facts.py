"""Facts of a machine that the doctor reads beside those of a plan: all at once, within seconds."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sparkdeploy.node.facts import output_or_none, read_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkdeploy.node.facts import Machine
    from sparkdeploy.settings import Settings
    from sparkdeploy.shell import Completed

READ_TIMEOUT_S = 2.0
WORKERS = 16
UNITS = "/etc/systemd/system"
TCP_CONNECT = ': <>"/dev/tcp/$0/$1"'
"""A bash command, so that nothing need be installed; $0 and $1 are host and port."""
LISTENING = "0A"
SOCKET = re.compile(
    r"^ *\d+: (?P<address>[0-9A-F]{8,32}):(?P<port>[0-9A-F]{4}) [0-9A-F:]+ (?P<state>[0-9A-F]{2}) ",
    re.MULTILINE | re.ASCII,
)
"""A row of /proc/net/tcp or tcp6."""
UNIT = re.compile(r"^sparkdeploy-(.+)\.service$", re.MULTILINE)

TargetName = Literal["hub", "package_index", "container_registry"]


@dataclass(frozen=True, slots=True)
class NeededHost:
    name: TargetName
    host: str
    port: int
    is_proxy: bool = False
    """The host is the proxy through which the real one is reached."""


@dataclass(frozen=True, slots=True)
class HostTargets:
    folders: Mapping[str, str]
    """By role: hub_cache, state, cache, data; lock, which all users share."""
    other_hub_caches: tuple[str, ...] = ()
    """Other caches, which may have the same models."""
    model_folder: str = ""
    """The recipe's model in a hub cache: `models--ORG--NAME`."""
    targets: tuple[NeededHost, ...] = ()


def own_folders(settings: Settings) -> dict[str, str]:
    """Return the folders of a user by role."""
    return {
        "hub_cache": str(settings.hub_cache),
        "state": str(settings.state_dir),
        "cache": str(settings.cache_dir),
        "data": str(settings.data_dir),
        "lock": str(settings.lock_dir),
    }


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of sparkdeploy; without an owner it does not exist yet."""

    role: str
    path: str
    owner_uid: int | None = None
    is_writable: bool = True


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts; None or an empty tuple for what cannot be read."""

    architecture: str | None = None
    system: str | None = None
    vmstat: str | None = None
    folders: tuple[Folder, ...] = ()
    duplicates: tuple[str, ...] = ()
    """Further copies of the recipe's model in other hub caches."""
    open_ports: frozenset[int] | None = None
    """Ports with a listener on every address."""
    reached: Mapping[NeededHost, bool] = field(default_factory=dict)
    localhost: tuple[str, ...] = ()
    """Addresses of `localhost` in the order in which programs try them."""
    booting: frozenset[str] = frozenset()
    """Deployments with a systemd unit."""


@dataclass(frozen=True, slots=True)
class TimeLimitedMachine:
    """A machine whose commands end after `timeout_s`."""

    machine: Machine
    timeout_s: float = READ_TIMEOUT_S

    def read_file(self, path: str) -> str:
        return self.machine.read_file(path)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        return self.machine.run(argv, timeout_s=min(timeout_s, self.timeout_s))


def read_host_facts(machine: Machine, targets: HostTargets) -> HostFacts:
    """Read everything in parallel; what cannot be read is left out, and nothing raises."""
    with ThreadPoolExecutor(WORKERS) as pool:
        folders = [
            pool.submit(_folder, machine, role, path) for role, path in targets.folders.items()
        ]
        copies = {
            path: pool.submit(_output, machine, "test", "-d", path)
            for cache in targets.other_hub_caches
            if targets.model_folder and (path := f"{cache}/{targets.model_folder}")
        }
        connections = {
            item: pool.submit(
                _output, machine, "bash", "-c", TCP_CONNECT, item.host, str(item.port)
            )
            for item in targets.targets
        }
        localhost = pool.submit(_output, machine, "getent", "ahosts", "localhost")
        architecture = pool.submit(_output, machine, "uname", "-m")
        tables = [read_or_none(machine, f"/proc/net/{name}") for name in ("tcp", "tcp6")]
        return HostFacts(
            architecture=(architecture.result() or "").strip() or None,
            system=_system_name(machine),
            vmstat=read_or_none(machine, "/proc/vmstat"),
            folders=tuple(item.result() for item in folders),
            duplicates=tuple(path for path, item in copies.items() if item.result() is not None),
            open_ports=_open_ports(*filter(None, tables)) if any(tables) else None,
            reached={target: item.result() is not None for target, item in connections.items()},
            localhost=_first_words(localhost.result() or ""),
            booting=frozenset(UNIT.findall(_output(machine, "ls", UNITS) or "")),
        )


def _output(machine: Machine, *argv: str) -> str | None:
    return output_or_none(machine, argv, timeout_s=READ_TIMEOUT_S)


def _folder(machine: Machine, role: str, path: str) -> Folder:
    owner = (_output(machine, "stat", "-c", "%u", "--", path) or "").strip()
    if not owner.isdecimal():
        return Folder(role, path)
    return Folder(role, path, int(owner), _output(machine, "test", "-w", path) is not None)


def _first_words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line.split()[0] for line in text.splitlines() if line.strip()))


def _system_name(machine: Machine) -> str | None:
    """Return the distribution's name, with the version of DGX OS where it is one."""
    name = _assignments(read_or_none(machine, "/etc/os-release")).get("PRETTY_NAME")
    dgx = _assignments(read_or_none(machine, "/etc/dgx-release"))
    version = dgx.get("DGX_SWBUILD_VERSION") or dgx.get("DGX_OTA_VERSION")
    return f"{name}, DGX OS {version}" if name and version else name


def _assignments(text: str | None) -> dict[str, str]:
    pairs = (line.partition("=") for line in (text or "").splitlines())
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs if value}


def _open_ports(*tables: str) -> frozenset[int]:
    """Return the ports of /proc/net/tcp and tcp6 with a listener on every address."""
    rows = (match for table in tables for match in SOCKET.finditer(table))
    return frozenset(
        int(row["port"], 16)
        for row in rows
        if row["state"] == LISTENING and set(row["address"]) == {"0"}
    )
