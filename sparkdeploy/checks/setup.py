"""What a machine lacks before sparkdeploy can work on it, with all that mends it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.checks import docker, machine
from sparkdeploy.checks.finding import Finding, Verdict, fail, not_seen, ok, warn
from sparkdeploy.console import format_gib
from sparkdeploy.node.shared_files import ROOT_UID, user_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.checks.surroundings import Folder
    from sparkdeploy.errors import NodeError
    from sparkdeploy.node.facts import GpuReading
    from sparkdeploy.node.reports import EngineInfo

GIB = 2**30
ENGINE_PACKAGES = ("docker.io", "iptables", "ca-certificates", "xz-utils")
"""Recommendations of the first are not installed: what it cannot run without stands here."""
ENGINE_LOG = "/var/log/sparkdeploy-dockerd.log"
LOCK_ENTRY = "/etc/tmpfiles.d/sparkdeploy.conf"
MORE_DISK = "docker system df, to see what could go; or move Docker's data-root to a larger disk"


class Purpose(Enum):
    """What a machine is for, with the disk that its images take."""

    SERVING = 30 * GIB
    REHEARSAL = 10 * GIB


class Remedy(Enum):
    """What root may do about a need beside installing packages."""

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
    """What decides how packages and services come to a machine."""

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
    """A container registry answers; not looked for where nothing else is missing."""
    folders: Sequence[Folder]
    lock_dir: str
    lock_entry: str
    """The line that makes it at each boot, as it stands there; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Need:
    """One finding, and what root may do about it."""

    finding: Finding
    packages: tuple[str, ...] = ()
    remedy: Remedy | None = None

    @property
    def can_be_mended(self) -> bool:
        return bool(self.packages) or self.remedy is not None


def needs_of(fact: SetupFact, purpose: Purpose) -> tuple[Need, ...]:
    """Return what every look found, good and bad."""
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
    return tuple(_for_root(need) if fact.uid == ROOT_UID else need for need in needs)


def can_be_mended(needs: Sequence[Need]) -> bool:
    """Say whether root has something to do after which nothing stands in the way."""
    failed = [need for need in needs if need.finding.verdict is Verdict.FAIL]
    return all(need.can_be_mended for need in failed) and any(it.can_be_mended for it in needs)


def packages_of(needs: Iterable[Need]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for need in needs for name in need.packages))


def commands_of(needs: Sequence[Need]) -> Iterator[str]:
    """Yield what to type, in this order; all packages come by one command."""
    asked = [need.finding.fix or "" for need in needs if need.packages]
    if asked:
        install = _install(packages_of(needs))
        yield install if asked[0].startswith("sudo ") else _without_sudo(install)
    for need in needs:
        if need.finding.fix and not need.packages:
            yield need.finding.fix


def start_engine_command(system: SystemFact) -> str:
    if system.has_systemd:
        return "sudo systemctl enable --now docker"
    return f"sudo sh -c 'setsid dockerd >>{ENGINE_LOG} 2>&1 </dev/null &'"


def lock_entry(lock_dir: str) -> str:
    """Return what systemd-tmpfiles has to be told; nothing of a path that it could not read."""
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
        said = engine.failure
        hint = said.hint if said is not None else None
        return Need(docker.check_engine(engine.info, said.message if said else "", hint))
    if engine.is_installed:
        start = start_engine_command(fact.system)
        return Need(fail(check, "the Docker Engine does not run", start), (), Remedy.START_ENGINE)
    packages = tuple(_engine_packages(fact.system))
    missing = "there is no Docker Engine"
    return _lacking(check, missing, packages, fact.system, Remedy.START_ENGINE)


def _engine_packages(system: SystemFact) -> Iterator[str]:
    yield from ENGINE_PACKAGES
    if system.has_apparmor:
        yield "apparmor"
    if not system.has_systemd and not system.has_cgroups:
        yield "cgroupfs-mount"


def _check_runtime(fact: SetupFact) -> Need:
    """The engine tells it; before there is one, whether the toolkit is installed."""
    info = fact.engine.info
    has_runtime = fact.has_gpu_toolkit if info is None else info.has_nvidia_runtime
    return Need(docker.check_nvidia_runtime(has_runtime=has_runtime))


def _check_disk(fact: SetupFact, purpose: Purpose) -> Need:
    check, wanted = "docker.disk", format_gib(purpose.value)
    if fact.images_free_bytes is None:
        return Need(not_seen(check, f"nobody knows what is free under {fact.images_folder}"))
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
    return _lacking(check, f"{seen} missing", tuple(fact.base_packages), fact.system)


def _check_lock(fact: SetupFact) -> Need:
    check, wanted = "folders.lock_at_boot", lock_entry(fact.lock_dir)
    if not wanted or fact.lock_entry == wanted:
        return Need(ok(check, f"{fact.lock_dir}, from each boot on" if wanted else fact.lock_dir))
    told = f"printf '{wanted.rstrip()}\\n' | sudo tee {LOCK_ENTRY}"
    return Need(
        warn(
            check,
            f"{fact.lock_dir} belongs to whichever user comes first after a boot",
            f"{told} && sudo systemd-tmpfiles --create {LOCK_ENTRY}",
        ),
        (),
        Remedy.SHARE_LOCK,
    )


def _lacking(
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


def _for_root(need: Need) -> Need:
    fix = need.finding.fix
    return replace(need, finding=replace(need.finding, fix=_without_sudo(fix) if fix else fix))


def _without_sudo(command: str) -> str:
    return command.replace("sudo ", "")
