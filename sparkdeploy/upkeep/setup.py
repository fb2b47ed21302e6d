"""`setup`: what a machine lacks, with the commands that install it, which root can let it run."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import requests

from sparkdeploy import shell
from sparkdeploy.bounded_http import BoundedSession
from sparkdeploy.checks import docker, machine
from sparkdeploy.checks.host import CheckedHost, folder_findings, own_folders
from sparkdeploy.checks.report import Finding, Verdict, fail, not_seen, ok, warn
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.image.base import missing_packages
from sparkdeploy.node import facts
from sparkdeploy.node.facts import THIS_MACHINE, GpuReading
from sparkdeploy.node.reports import EngineInfo
from sparkdeploy.node.shared_files import ROOT_UID
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_gib

GIB = 2**30
SERVING_BYTES, REHEARSAL_BYTES = 30 * GIB, 10 * GIB
ENGINE_PACKAGES: tuple[str, ...] = ("docker.io", "iptables", "ca-certificates", "xz-utils")
"""The engine and what it cannot run without: recommended packages are not installed."""
ENGINE_LOG = "/var/log/sparkdeploy-dockerd.log"
LOCK_ENTRY = "/etc/tmpfiles.d/sparkdeploy.conf"
APPARMOR = Path("/sys/module/apparmor/parameters/enabled")
SYSTEMD = Path("/run/systemd/system")
CGROUPS = Path("/sys/fs/cgroup")
DOCKER_FOLDER = Path("/var/lib/docker")
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
REGISTRY_TIMEOUT_S = 5
KNOWN_ANSWERS = (200, 401, 404)
ENGINE_WAIT_S = 60.0
POLL_S = 0.5
MORE_DISK = (
    "docker system df, to see what can be removed; or move Docker's data-root to a larger disk"
)


@dataclass(frozen=True, slots=True)
class Need:
    """One finding; its fix is a command that root can let `setup` run, where that is safe."""

    finding: Finding
    packages: tuple[str, ...] = ()
    is_fixable: bool = False


@dataclass(frozen=True, slots=True)
class System:
    has_apt: bool = True
    has_systemd: bool = True
    has_apparmor: bool = False
    has_cgroups: bool = True


def set_up(
    settings: Settings, *, rehearsal: bool, agrees: Callable[[Sequence[Need]], bool]
) -> tuple[Need, ...]:
    """Return what was found; as root, fix what can be once `agrees`, and look again."""
    needs = find_needs(settings, rehearsal=rehearsal)
    if os.geteuid() != ROOT_UID or not is_fixable(needs) or not agrees(needs):
        return needs
    fix(needs, settings)
    return find_needs(settings, rehearsal=rehearsal)


def find_needs(settings: Settings, *, rehearsal: bool) -> tuple[Need, ...]:
    uid, system = os.geteuid(), _system()
    gpu = facts.GpuReading() if rehearsal else facts.read_gpus()
    engine, info = _engine(settings, system)
    images = Path(info.root_dir) if info is not None else DOCKER_FOLDER
    # Whoever calls through sudo will work without it.
    base = missing_packages(int(os.environ.get("SUDO_UID", uid)))
    lock_entry = facts.read_or_none(THIS_MACHINE, LOCK_ENTRY) or ""
    needs = (
        Need(check_gpu(gpu)),
        engine,
        *([Need(_check_runtime(info))] if gpu.gpus else []),
        Need(check_disk(images, facts.free_bytes(images), serves=bool(gpu.gpus))),
        check_base(base, system, has_registry=bool(base) and _registry_answers(settings)),
        *map(Need, folder_findings(CheckedHost(THIS_MACHINE, own_folders(settings)))),
        check_lock(str(settings.lock_dir), lock_entry),
    )
    return tuple(_without_sudo(need) if uid == ROOT_UID else need for need in needs)


def _check_runtime(info: EngineInfo | None) -> Finding:
    if info is None:
        # Without an engine the installed toolkit counts.
        return docker.check_nvidia_runtime(has_runtime=_has_program("nvidia-container-runtime"))
    return docker.check_nvidia_runtime(
        has_runtime=info.has_nvidia_runtime, cdi_device=info.cdi_device
    )


def is_fixable(needs: Sequence[Need]) -> bool:
    """Say whether root can fix something, and nothing then fails any more."""
    failed = [need for need in needs if need.finding.verdict is Verdict.FAIL]
    return all(need.is_fixable for need in failed) and any(it.is_fixable for it in needs)


def commands_of(needs: Sequence[Need]) -> Iterator[str]:
    packages = tuple(dict.fromkeys(name for need in needs for name in need.packages))
    if packages:
        install = _install(packages)
        yield install if os.geteuid() != ROOT_UID else install.replace("sudo ", "")
    yield from (it.finding.fix for it in needs if it.finding.fix and not it.packages)


def fix(needs: Sequence[Need], settings: Settings) -> None:
    """Run as root the commands of these needs, and wait for an engine that was started."""
    fixable = [need for need in needs if need.is_fixable]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in commands_of(fixable):
        with console.step(command):
            done = shell.run(("sh", "-c", command), env=env)
        if done.exit_code:
            output = f"{done.stdout}{done.stderr}".strip()
            raise SparkdeployError(f"this failed: {command}", detail=output)
    if any(need.finding.check == "docker.engine" for need in fixable):
        _start_and_wait(settings)


def check_gpu(gpu: GpuReading) -> Finding:
    check = "machine.gpu"
    if gpu.gpus:
        return ok(check, gpu.gpus[0].name)
    if gpu.failure is None or "not installed" in gpu.failure:
        return ok(check, "none: this machine rehearses, and serves nothing")
    seen = f"none is used, for nvidia-smi says: {gpu.failure}"
    return warn(check, seen, machine.REVIVE_DRIVER)


def missing_engine(system: System, *, is_installed: bool) -> Need:
    check = "docker.engine"
    if is_installed:
        start = start_engine_command(system)
        return Need(fail(check, "the Docker Engine does not run", start), is_fixable=True)
    packages = ENGINE_PACKAGES
    if system.has_apparmor:
        packages += ("apparmor",)
    if not system.has_systemd and not system.has_cgroups:
        packages += ("cgroupfs-mount",)
    return _missing(check, "there is no Docker Engine", packages, system)


def start_engine_command(system: System) -> str:
    if system.has_systemd:
        return "sudo systemctl enable --now docker"
    # A session of its own, holding none of our descriptors.
    return f"sudo sh -c 'setsid dockerd >>{ENGINE_LOG} 2>&1 </dev/null &'"


def check_disk(folder: Path, free_bytes: int | None, *, serves: bool) -> Finding:
    check, needed_bytes = "docker.disk", SERVING_BYTES if serves else REHEARSAL_BYTES
    if free_bytes is None:
        return not_seen(check, f"the free space under {folder} is unknown")
    seen = f"{format_gib(free_bytes)} free under {folder}"
    if free_bytes >= needed_bytes:
        return ok(check, seen)
    return fail(check, f"{seen}, and images take {format_gib(needed_bytes)}", MORE_DISK)


def check_base(packages: Sequence[str], system: System, *, has_registry: bool) -> Need:
    check = "image.base"
    if not packages:
        return Need(ok(check, "can be made from the distribution's packages"))
    if has_registry:
        return Need(ok(check, "the container registry answers"))
    seen = f"no container registry answers, and to make it {', '.join(packages)} is missing"
    return _missing(check, seen, tuple(packages), system)


def check_lock(lock_dir: str, entry: str) -> Need:
    """Look for the tmpfiles.d line that makes the lock folder at each boot."""
    check, wanted = "folders.lock_at_boot", f"d {lock_dir} 1777 root root -"
    if entry.strip() == wanted:
        return Need(ok(check, f"{lock_dir}, from each boot on"))
    if any(map(str.isspace, lock_dir)):
        return Need(ok(check, lock_dir))  # systemd-tmpfiles could not read it
    seen = f"{lock_dir} belongs to the first user of sparkdeploy after a boot"
    command = (
        f"printf '{wanted}\\n' | sudo install -D -m 644 /dev/stdin {LOCK_ENTRY} && "
        f"(sudo systemd-tmpfiles --create {LOCK_ENTRY} || sudo install -d -m 1777 {lock_dir})"
    )
    return Need(warn(check, seen, command), is_fixable=True)


def _missing(check: str, seen: str, packages: tuple[str, ...], system: System) -> Need:
    """Only apt is known: elsewhere the same programs have other packages."""
    if not system.has_apt:
        named = ", ".join(packages)
        return Need(fail(check, seen, f"install what your distribution has for {named}"))
    return Need(fail(check, seen, _install(packages)), packages, is_fixable=True)


def _install(packages: Sequence[str]) -> str:
    return (
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends "
        f"{' '.join(packages)}"
    )


def _without_sudo(need: Need) -> Need:
    command = need.finding.fix and need.finding.fix.replace("sudo ", "")
    return replace(need, finding=replace(need.finding, fix=command))


def _system() -> System:
    return System(
        has_apt=shell.which("apt-get") is not None,
        has_systemd=SYSTEMD.is_dir(),
        has_apparmor=APPARMOR.exists(),
        has_cgroups=CGROUPS.is_mount(),
    )


def _has_program(name: str) -> bool:
    """A user's PATH on Debian lacks the folders where daemons are."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), SYSTEM_FOLDERS))
    return shutil.which(name, path=folders) is not None


def _engine(settings: Settings, system: System) -> tuple[Need, EngineInfo | None]:
    try:
        with connect(settings) as host:
            info = host.info()
            return Need(docker.check_engine(info, "", None)), info
    except NodeError as error:
        is_local = (settings.docker_host or "unix://").startswith("unix://")
        if not is_local or isinstance(error.__cause__, PermissionError):
            return Need(docker.check_engine(None, error.message, error.hint)), None
        return missing_engine(system, is_installed=_has_program("dockerd")), None


def _registry_answers(settings: Settings) -> bool:
    url = f"https://{settings.hosts.container_registry}/v2/"
    verify = settings.build.verify
    try:
        with (
            BoundedSession(REGISTRY_TIMEOUT_S) as session,
            # Its status says all: a body is not read.
            session.get(
                url, timeout=REGISTRY_TIMEOUT_S, verify=verify, allow_redirects=False, stream=True
            ) as answer,
        ):
            return answer.status_code in KNOWN_ANSWERS
    except (requests.RequestException, OSError):
        return False


def _start_and_wait(settings: Settings) -> None:
    """Start what was installed as the machine starts services, unless its package has, and wait."""
    system, deadline_s = _system(), time.monotonic() + ENGINE_WAIT_S
    if _engine(settings, system)[1] is None:
        # Of two that start together the second finds the first's file and ends.
        shell.run(("sh", "-c", start_engine_command(system).replace("sudo ", "")))
    while (found := _engine(settings, system))[1] is None:
        if time.monotonic() >= deadline_s:
            log = facts.read_or_none(THIS_MACHINE, ENGINE_LOG)
            raise NodeError(
                f"the Docker Engine did not answer within {ENGINE_WAIT_S:g} s",
                hint="journalctl -u docker" if log is None else f"its log is {ENGINE_LOG}",
                detail=log[-2000:] if log else found[0].finding.seen,
            )
        time.sleep(POLL_S)
