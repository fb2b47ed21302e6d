"""Reads the surroundings through the seam, everything at once and nothing for long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checks import surroundings
from sparkdeploy.checks.surroundings import Folder, Places, Surroundings, Target
from sparkdeploy.node.machine import output_or_none, read_or_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.checks.surroundings import Link
    from sparkdeploy.node.machine import Machine
    from sparkdeploy.shell import Completed

READ_TIMEOUT_S = 2.0
WORKERS = 16
UNITS = "/etc/systemd/system"
KNOCK = ': <>"/dev/tcp/$0/$1"'
"""Bash connects by itself, so that nothing need be installed; $0 and $1 are host and port."""


@dataclass(frozen=True, slots=True)
class HurriedMachine:
    """A machine whose commands may not take longer than a doctor's patient waits."""

    machine: Machine
    timeout_s: float = READ_TIMEOUT_S

    def read_file(self, path: str) -> str:
        """Return a text file; raise NodeError when it cannot be read."""
        return self.machine.read_file(path)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run a program to its end, or to the end of patience."""
        return self.machine.run(argv, timeout_s=min(timeout_s, self.timeout_s))


def read_surroundings(machine: Machine, places: Places) -> Surroundings:
    """Read everything at once; what cannot be read is left out, and nothing raises."""
    with ThreadPoolExecutor(WORKERS) as pool:
        folders = [
            pool.submit(_folder, machine, role, path) for role, path in places.folders.items()
        ]
        copies = [
            pool.submit(_has_copy, machine, f"{cache}/{places.model_folder}")
            for cache in places.other_hub_caches
            if places.model_folder
        ]
        knocks = {item: pool.submit(_is_reached, machine, item) for item in places.targets}
        links = pool.submit(_links, machine)
        localhost = pool.submit(_localhost, machine)
        architecture = pool.submit(_line, machine, ("uname", "-m"))
        tables = [read_or_none(machine, f"/proc/net/{name}") for name in ("tcp", "tcp6")]
        return Surroundings(
            architecture=architecture.result(),
            system=surroundings.system_name(
                read_or_none(machine, "/etc/os-release") or "",
                read_or_none(machine, "/etc/dgx-release"),
            ),
            vmstat=read_or_none(machine, "/proc/vmstat"),
            folders=tuple(item.result() for item in folders),
            duplicates=tuple(path for item in copies if (path := item.result())),
            open_ports=surroundings.open_ports(*filter(None, tables)) if any(tables) else None,
            reached={target: item.result() for target, item in knocks.items()},
            links=links.result(),
            localhost=localhost.result(),
            booting=surroundings.units(_line(machine, ("ls", UNITS)) or ""),
        )


def _line(machine: Machine, argv: Sequence[str]) -> str | None:
    output = output_or_none(machine, argv, timeout_s=READ_TIMEOUT_S)
    return output.strip() or None if output is not None else None


def _folder(machine: Machine, role: str, path: str) -> Folder:
    owner = _line(machine, ("stat", "-c", "%u", "--", path))
    if owner is None or not owner.isdecimal():
        return Folder(role, path)
    writable = output_or_none(machine, ("test", "-w", path), timeout_s=READ_TIMEOUT_S)
    return Folder(role, path, int(owner), writable is not None)


def _has_copy(machine: Machine, path: str) -> str | None:
    found = output_or_none(machine, ("test", "-d", path), timeout_s=READ_TIMEOUT_S)
    return path if found is not None else None


def _is_reached(machine: Machine, target: Target) -> bool:
    command = ("bash", "-c", KNOCK, target.host, str(target.port))
    return output_or_none(machine, command, timeout_s=READ_TIMEOUT_S) is not None


def _links(machine: Machine) -> tuple[Link, ...] | None:
    output = output_or_none(machine, ("ip", "-json", "addr"), timeout_s=READ_TIMEOUT_S)
    try:
        return None if output is None else surroundings.read_links(output)
    except (ValueError, KeyError, TypeError):
        return None


def _localhost(machine: Machine) -> tuple[str, ...]:
    output = output_or_none(machine, ("getent", "ahosts", "localhost"), timeout_s=READ_TIMEOUT_S)
    words = [line.split()[0] for line in (output or "").splitlines() if line.strip()]
    return tuple(dict.fromkeys(words))
