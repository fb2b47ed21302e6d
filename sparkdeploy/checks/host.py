"""Checks of a machine beside those of a plan: each reads what it judges, and all run at once.

A new check is one function here, and its name in CHECKS.
"""

import ipaddress
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sparkdeploy.checks.known import known
from sparkdeploy.checks.report import Finding, fail, not_seen, ok, warn
from sparkdeploy.node.facts import Machine, output_or_none, read_or_none
from sparkdeploy.node.lock import made_anew
from sparkdeploy.node.node import at_once
from sparkdeploy.node.shared_files import ROOT_UID, user_name
from sparkdeploy.settings import Settings
from sparkdeploy.shell import Completed

READ_TIMEOUT_S = 2.0
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
class TimeLimitedMachine:
    """A machine whose commands end after some seconds."""

    machine: Machine

    def read_file(self, path: str) -> str:
        return self.machine.read_file(path)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        return self.machine.run(argv, timeout_s=min(timeout_s, READ_TIMEOUT_S))


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """A machine that is looked at, and what of it is asked."""

    machine: Machine
    folders: Mapping[str, str]
    """By role: hub_cache, state, cache, data; lock, which all users share."""
    other_hub_caches: tuple[str, ...] = ()
    model_folder: str = ""
    """The recipe's model in a hub cache: `models--ORG--NAME`."""
    targets: tuple[NeededHost, ...] = ()
    fabric: frozenset[str] = frozenset()
    """The addresses of the fabric's interfaces."""

    def output(self, *argv: str) -> str | None:
        return output_or_none(self.machine, argv, timeout_s=READ_TIMEOUT_S)

    def file(self, path: str) -> str | None:
        return read_or_none(self.machine, path)


def own_folders(settings: Settings) -> dict[str, str]:
    return {
        "hub_cache": str(settings.hub_cache),
        "state": str(settings.state_dir),
        "cache": str(settings.cache_dir),
        "data": str(settings.data_dir),
        "lock": str(settings.lock_dir),
    }


def host_findings(host: CheckedHost) -> list[Finding]:
    """Run all checks; what cannot be read is not seen, and nothing raises."""
    checks = [partial(check, host) for check in CHECKS]
    checks += [partial(_folder, host, *item) for item in host.folders.items()]
    checks += [partial(_reached, host, target) for target in host.targets]
    return at_once(lambda check: check(), checks)


def folder_findings(host: CheckedHost) -> Iterator[Finding]:
    yield from (_folder(host, *item) for item in host.folders.items())


def processor(host: CheckedHost) -> str | None:
    return (host.output("uname", "-m") or "").strip() or None


def booting(host: CheckedHost) -> frozenset[str]:
    return frozenset(UNIT.findall(host.output("ls", UNITS) or ""))


def _architecture(host: CheckedHost) -> Finding:
    check, found = "machine.architecture", processor(host)
    if found is None:
        return not_seen(check, "`uname -m` did not answer")
    if found in {"aarch64", "x86_64"}:
        return ok(check, found)
    fix = "use a machine with x86_64 or aarch64 processors"
    return fail(check, f"there is no vLLM for {found}", fix)


def _system(host: CheckedHost) -> Finding:
    """Name the distribution, with the version of DGX OS where it is one."""
    check = "machine.system"
    name = _assignments(host.file("/etc/os-release")).get("PRETTY_NAME")
    if not name:
        return not_seen(check, "/etc/os-release cannot be read")
    dgx = _assignments(host.file("/etc/dgx-release"))
    version = dgx.get("DGX_SWBUILD_VERSION") or dgx.get("DGX_OTA_VERSION")
    return ok(check, f"{name}, DGX OS {version}" if version else name)


def _assignments(text: str | None) -> dict[str, str]:
    pairs = (line.partition("=") for line in (text or "").splitlines())
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs if value}


def _oom_kills(host: CheckedHost) -> Finding:
    check, lines = "machine.oom_kills", (host.file("/proc/vmstat") or "").splitlines()
    counts = dict(line.split(maxsplit=1) for line in lines if " " in line.strip())
    if not counts.get("oom_kill", "").strip().isdecimal():
        return not_seen(check, "the kernel does not count programs it killed for memory")
    count = int(counts["oom_kill"])
    if count == 0:
        return ok(check, "the kernel has killed nothing for memory since the start")
    killed = f"{count} program{'s' if count > 1 else ''}"
    seen = f"the kernel has killed {killed} for memory since the machine started"
    return warn(check, seen, "sudo dmesg | grep -i 'killed process'")


def _duplicates(host: CheckedHost) -> Finding:
    check, folder = "folders.duplicates", host.model_folder
    paths = [f"{cache}/{folder}" for cache in host.other_hub_caches if folder]
    copies = [path for path in paths if host.output("test", "-d", path) is not None]
    if not copies:
        return ok(check, "the model is in no second cache")
    in_use = f"{host.folders['hub_cache']} is the cache in use"
    fix = f"keep one: set HF_HUB_CACHE to it, and remove the other (ls {shlex.quote(copies[0])})"
    return warn(check, f"the model is in {', '.join(copies)} too, and {in_use}", fix)


def _localhost(host: CheckedHost) -> Finding:
    """Check the address of `localhost`: a server on 127.0.0.1 is not on ::1."""
    check, lines = "network.localhost", (host.output("getent", "ahosts", "localhost") or "")
    addresses = [line.split()[0] for line in lines.splitlines() if line.strip()]
    if not addresses:
        return not_seen(check, "localhost cannot be looked up")
    if "127.0.0.1" not in addresses:
        return warn(
            check,
            f"localhost means {addresses[0]}, and deployments listen on 127.0.0.1",
            "use http://127.0.0.1 in clients, or add `127.0.0.1 localhost` to /etc/hosts",
        )
    first = f"localhost means {addresses[0]} first"
    return ok(check, first if addresses[0] == "127.0.0.1" else f"{first}: give clients 127.0.0.1")


def _own_name(host: CheckedHost) -> Finding:
    """Check where the machine's own name leads clients and other nodes."""
    check = "network.own_name"
    name = (host.output("uname", "-n") or "").strip()
    lines = (host.output("getent", "ahosts", name) if name else None) or ""
    found = [line.split()[0] for line in lines.splitlines() if line.strip()]
    if not found:
        return not_seen(check, f"{name or 'the name of this machine'} cannot be looked up")
    first, seen = found[0].partition("%")[0], f"{name} means {found[0]}"
    try:
        is_link_local = ipaddress.ip_address(first).is_link_local
    except ValueError:
        return not_seen(check, seen)
    fix = f"put `ADDRESS {name}` with the address in your network into /etc/hosts, or name clients "
    fix += "the address itself"
    if is_link_local:
        return warn(check, f"{seen}, which counts on one cable alone (link-local)", fix)
    if first in host.fabric:
        return warn(check, f"{seen}, an address of the fabric: no client reaches it there", fix)
    return ok(check, seen)


def _open_ports(host: CheckedHost) -> Finding:
    """Name ports of model servers that answer anyone: listeners on every address."""
    check, tables = "ports.open", [host.file(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    if not any(tables):
        return not_seen(check, "/proc/net/tcp cannot be read")
    rows = [row for table in tables for row in SOCKET.finditer(table or "")]
    on_all = (it for it in rows if it["state"] == LISTENING and set(it["address"]) == {"0"})
    servers, ports = known()["ports"], sorted({int(row["port"], 16) for row in on_all})
    named = ", ".join(f"{port} ({servers[port]})" for port in ports if port in servers)
    if not named:
        return ok(check, "none of Ray's and Ollama's ports is open to the network")
    return warn(
        check,
        f"open to the whole network: {named}",
        "bind them to 127.0.0.1 (Ollama: OLLAMA_HOST=127.0.0.1), or close them in the firewall",
    )


CHECKS = (_architecture, _system, _oom_kills, _duplicates, _localhost, _own_name, _open_ports)


def _folder(host: CheckedHost, role: str, path: str) -> Finding:
    check, caller_uid = f"folders.{role}", os.geteuid()
    owner = (host.output("stat", "-c", "%u", "--", path) or "").strip()
    if not owner.isdecimal():
        return ok(check, f"{path} does not exist yet; it is created when needed")
    is_writable = host.output("test", "-w", path) is not None
    if role == "lock":
        # All users share it: other users' commands refuse a folder that one of them owns.
        owned, fix = f"{path} belongs to {user_name(int(owner))}", made_anew(Path(path))
        if int(owner) not in {ROOT_UID, caller_uid}:
            return fail(check, f"{owned}, and all users share it", fix)
        return (
            ok(check, path) if is_writable else fail(check, f"{owned} and cannot be written", fix)
        )
    if is_writable:
        return ok(check, path)
    seen = f"uid {caller_uid} cannot write {path} of uid {owner}"
    return fail(check, seen, f"sudo chown -R {caller_uid} {shlex.quote(path)}")


def _reached(host: CheckedHost, target: NeededHost) -> Finding:
    check = f"network.{target.name}"
    place = f"{'the proxy ' if target.is_proxy else ''}{target.host}:{target.port}"
    connect = ("bash", "-c", TCP_CONNECT, target.host, str(target.port))
    if host.output(*connect) is not None:
        return ok(check, f"{place} answers")
    needed = known()["hosts"][target.name]
    return warn(check, f"{place} does not answer: no {needed['use']}", needed["fix"])
