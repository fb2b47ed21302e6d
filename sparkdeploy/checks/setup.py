"""What sparkdeploy needs on a machine, and the commands that install it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.checks import docker, machine
from sparkdeploy.checks.finding import Finding, Verdict, fail, not_seen, ok, warn
from sparkdeploy.console import format_gib
from sparkdeploy.errors import NodeError
from sparkdeploy.node.shared_files import ROOT_UID, user_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.checks.host_facts import Folder
    from sparkdeploy.node.facts import GpuReading
    from sparkdeploy.node.reports import EngineInfo

GIB = 2**30
ENGINE_PACKAGES: tuple[str, ...] = ("docker.io", "iptables", "ca-certificates", "xz-utils")
"""The engine and what it cannot run without: recommended packages are not installed."""
ENGINE_LOG = "/var/log/sparkdeploy-dockerd.log"
LOCK_ENTRY = "/etc/tmpfiles.d/sparkdeploy.conf"
MORE_DISK = (
    "docker system df, to see what can be removed; or move Docker's data-root to a larger disk"
)


class Purpose(Enum):
    """The use of a machine, with the disk that its images take."""

    SERVING = 30 * GIB
    REHEARSAL = 10 * GIB


class Remedy(Enum):
    """What root may do about a need besides installing packages."""

    START_ENGINE = "start the Docker Engine"
    SHARE_LOCK = "make the lock folder of all users"


class Admission(Enum):
    OPEN = "may ask the Docker Engine"
    NEW_LOGIN = "is in its group, and was not when the login began"
    CLOSED = "is not in its group"


@dataclass(frozen=True, slots=True)
class EngineFact:
    """The Docker Engine; without `info` the rest says why it did not answer."""

    info: EngineInfo | None = None
    failure: NodeError | None = None
    admission: Admission = Admission.OPEN
    is_local: bool = True
    is_installed: bool = False


@dataclass(frozen=True, slots=True)
class SystemFact:
    """How packages and services are installed on a machine."""

    has_apt: bool = True
    has_systemd: bool = True
    has_apparmor: bool = False
    has_cgroups: bool = True


@dataclass(frozen=True, slots=True)
class SetupFact:
    uid: int
    system: SystemFact
    engine: EngineFact
    images_folder: str
    images_free_bytes: int | None
    gpu: GpuReading
    has_gpu_toolkit: bool
    base_packages: Sequence[str]
    """Packages that are missing for a base image made without a registry."""
    has_registry: bool
    """A container registry answers; not asked where nothing else is missing."""
    folders: Sequence[Folder]
    lock_dir: str
    lock_entry: str
    """The tmpfiles.d line that creates it at each boot; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Need:
    """One finding, and what root may do about it."""

    finding: Finding
    packages: tuple[str, ...] = ()
    remedy: Remedy | None = None

    @property
    def is_fixable(self) -> bool:
        return bool(self.packages) or self.remedy is not None


def needs_of(fact: SetupFact, purpose: Purpose) -> tuple[Need, ...]:
    """Return the result of every check, good and bad."""
    serves = purpose is Purpose.SERVING and bool(fact.gpu.gpus)
    needs = (
        _check_gpu(fact.gpu),
        _check_engine(fact),
        *([_check_runtime(fact)] if serves else []),
        _check_disk(fact, Purpose.SERVING if serves else Purpose.REHEARSAL),
        _check_base(fact),
        *map(Need, machine.folder_findings(fact.folders, caller_uid=fact.uid)),
        _check_lock(fact),
    )
    return tuple(_without_sudo(need) if fact.uid == ROOT_UID else need for need in needs)


def is_fixable(needs: Sequence[Need]) -> bool:
    """Say whether root can fix something, and nothing then fails any more."""
    failed = [need for need in needs if need.finding.verdict is Verdict.FAIL]
    return all(need.is_fixable for need in failed) and any(it.is_fixable for it in needs)


def packages_of(needs: Iterable[Need]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for need in needs for name in need.packages))


def commands_of(needs: Sequence[Need]) -> Iterator[str]:
    """Yield the commands to type, in this order; one command installs all packages."""
    fixes = [need.finding.fix or "" for need in needs if need.packages]
    if fixes:
        install = _install(packages_of(needs))
        yield install if fixes[0].startswith("sudo ") else install.replace("sudo ", "")
    yield from (it.finding.fix for it in needs if it.finding.fix and not it.packages)


def start_engine_command(system: SystemFact) -> str:
    if system.has_systemd:
        return "sudo systemctl enable --now docker"
    return f"sudo sh -c 'setsid dockerd >>{ENGINE_LOG} 2>&1 </dev/null &'"


def lock_entry(lock_dir: str) -> str:
    """Return the line for systemd-tmpfiles; empty for a path that it could not read."""
    return "" if any(map(str.isspace, lock_dir)) else f"d {lock_dir} 1777 root root -\n"


def _check_gpu(gpu: GpuReading) -> Need:
    check = "machine.gpu"
    if gpu.gpus:
        return Need(ok(check, gpu.gpus[0].name))
    if gpu.failure is None or "not installed" in gpu.failure:
        return Need(ok(check, "none: this machine rehearses, and serves nothing"))
    seen = f"none is used, for nvidia-smi says: {gpu.failure}"
    return Need(warn(check, seen, machine.REVIVE_DRIVER))


def _check_engine(fact: SetupFact) -> Need:
    check, engine = "docker.engine", fact.engine
    if engine.admission is Admission.CLOSED:
        user = user_name(fact.uid)
        join = f"sudo usermod -aG docker {shlex.quote(user)}    # then log out and in again"
        return Need(fail(check, f"{user} may not use the Docker Engine without sudo", join))
    if engine.admission is Admission.NEW_LOGIN:
        seen = "the group docker has this user only from the next login on"
        return Need(fail(check, seen, "log out and in again, or here: newgrp docker"))
    if engine.info is not None or not engine.is_local:
        failure = engine.failure or NodeError("")
        return Need(docker.check_engine(engine.info, failure.message, failure.hint))
    if engine.is_installed:
        start = start_engine_command(fact.system)
        return Need(fail(check, "the Docker Engine does not run", start), (), Remedy.START_ENGINE)
    packages = ENGINE_PACKAGES
    if fact.system.has_apparmor:
        packages += ("apparmor",)
    if not fact.system.has_systemd and not fact.system.has_cgroups:
        packages += ("cgroupfs-mount",)
    missing = "there is no Docker Engine"
    return _missing(check, missing, packages, fact.system, Remedy.START_ENGINE)


def _check_runtime(fact: SetupFact) -> Need:
    """Without an engine the installed toolkit counts."""
    info = fact.engine.info
    has_runtime = fact.has_gpu_toolkit if info is None else info.has_nvidia_runtime
    return Need(docker.check_nvidia_runtime(has_runtime=has_runtime))


def _check_disk(fact: SetupFact, purpose: Purpose) -> Need:
    check, wanted = "docker.disk", format_gib(purpose.value)
    if fact.images_free_bytes is None:
        return Need(not_seen(check, f"the free space under {fact.images_folder} is unknown"))
    seen = f"{format_gib(fact.images_free_bytes)} free under {fact.images_folder}"
    if fact.images_free_bytes >= purpose.value:
        return Need(ok(check, seen))
    return Need(fail(check, f"{seen}, and images take {wanted}", MORE_DISK))


def _check_base(fact: SetupFact) -> Need:
    check = "image.base"
    if not fact.base_packages:
        return Need(ok(check, "can be made from the distribution's packages"))
    if fact.has_registry:
        return Need(ok(check, "the container registry answers"))
    seen = f"no container registry answers, and to make it {', '.join(fact.base_packages)} is"
    return _missing(check, f"{seen} missing", tuple(fact.base_packages), fact.system)


def _check_lock(fact: SetupFact) -> Need:
    check, wanted = "folders.lock_at_boot", lock_entry(fact.lock_dir)
    if not wanted or fact.lock_entry == wanted:
        return Need(ok(check, f"{fact.lock_dir}, from each boot on" if wanted else fact.lock_dir))
    fix = f"printf '{wanted.rstrip()}\\n' | sudo tee {LOCK_ENTRY}"
    fix += f" && sudo systemd-tmpfiles --create {LOCK_ENTRY}"
    seen = f"{fact.lock_dir} belongs to the first user of sparkdeploy after a boot"
    return Need(warn(check, seen, fix), remedy=Remedy.SHARE_LOCK)


def _missing(
    check: str,
    seen: str,
    packages: tuple[str, ...],
    system: SystemFact,
    remedy: Remedy | None = None,
) -> Need:
    """Only apt is known: elsewhere the same programs have other packages."""
    if not system.has_apt:
        fix = f"install what your distribution has for {', '.join(packages)}"
        return Need(fail(check, seen, fix))
    return Need(fail(check, seen, _install(packages)), packages, remedy)


def _install(packages: Sequence[str]) -> str:
    return f"sudo apt-get update && sudo apt-get install -y {' '.join(packages)}"


def _without_sudo(need: Need) -> Need:
    fix = need.finding.fix and need.finding.fix.replace("sudo ", "")
    return replace(need, finding=replace(need.finding, fix=fix))
