"""`setup`: look for all that a machine needs, and as root install what is missing."""

from __future__ import annotations

import contextlib
import grp
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from sparkdeploy import atomic_files, shell
from sparkdeploy.bounded_http import BoundedSession
from sparkdeploy.checks.host_facts import HostTargets, own_folders, read_host_facts
from sparkdeploy.checks.setup import (
    ENGINE_LOG,
    LOCK_ENTRY,
    Admission,
    EngineFact,
    Need,
    Purpose,
    Remedy,
    SetupFact,
    SystemFact,
    is_fixable,
    lock_entry,
    needs_of,
    packages_of,
    start_engine_command,
)
from sparkdeploy.console import console
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.image.base import missing_packages
from sparkdeploy.node import facts
from sparkdeploy.node.facts import THIS_MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparkdeploy.settings import Settings

APPARMOR = Path("/sys/module/apparmor/parameters/enabled")
SYSTEMD = Path("/run/systemd/system")
CGROUPS = Path("/sys/fs/cgroup")
DOCKERD_PID = Path("/var/run/docker.pid")
DOCKER_FOLDER = Path("/var/lib/docker")
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
REGISTRY_TIMEOUT_S = 5
KNOWN_ANSWERS = (200, 401, 404)
ENGINE_WAIT_S = 60.0
POLL_S = 0.5
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "Dpkg::Use-Pty=0")


def set_up(
    settings: Settings, purpose: Purpose, *, agrees: Callable[[Sequence[Need]], bool]
) -> tuple[Need, ...]:
    """Return what was found; as root, mend what can be once `agrees`, and look again.

    Nothing is changed where something would stay in the way. Raises SparkdeployError when a
    package cannot be installed, and NodeError when the engine does not start.
    """
    needs = needs_of(look(settings, purpose), purpose)
    if facts.current_uid() != 0 or not is_fixable(needs) or not agrees(needs):
        return needs
    mend(needs, settings)
    return needs_of(look(settings, purpose), purpose)


def look(settings: Settings, purpose: Purpose) -> SetupFact:
    """See everything that setup decides on; what does not answer is a fact, too."""
    engine = _engine(settings)
    images = Path(engine.info.root_dir) if engine.info is not None else DOCKER_FOLDER
    # Whoever calls through sudo will work without it.
    base = missing_packages(int(os.environ.get("SUDO_UID", facts.current_uid())))
    seen = read_host_facts(THIS_MACHINE, HostTargets(own_folders(settings)))
    return SetupFact(
        uid=facts.current_uid(),
        system=_system(),
        engine=engine,
        images_folder=str(images),
        images_free_bytes=facts.free_bytes(images),
        gpu=facts.read_gpus() if purpose is Purpose.SERVING else facts.GpuReading(),
        has_gpu_toolkit=_has_system_program("nvidia-container-runtime"),
        base_packages=base,
        has_registry=bool(base) and _registry_answers(settings),
        folders=seen.folders,
        lock_dir=str(settings.lock_dir),
        lock_entry=facts.read_or_none(THIS_MACHINE, LOCK_ENTRY) or "",
    )


def mend(needs: Sequence[Need], settings: Settings) -> None:
    """Do as root all that can be done about these needs."""
    packages, remedies = packages_of(needs), {need.remedy for need in needs}
    if packages:
        with console.step(f"packages: {', '.join(packages)}"):
            _run(*APT, "update")
            _run(*APT, "install", "-y", "--no-install-recommends", *packages)
    if Remedy.START_ENGINE in remedies:
        with console.step("Docker Engine"):
            _start_engine()
            _wait_for_engine(settings)
    if Remedy.SHARE_LOCK in remedies:
        _share_lock(settings.lock_dir)


def _has_system_program(name: str) -> bool:
    """A user's PATH on Debian lacks the folders where daemons are."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), SYSTEM_FOLDERS))
    return shutil.which(name, path=folders) is not None


def _system() -> SystemFact:
    return SystemFact(
        has_apt=shell.which("apt-get") is not None,
        has_systemd=SYSTEMD.is_dir(),
        has_apparmor=APPARMOR.exists(),
        has_cgroups=CGROUPS.is_mount(),
    )


def _engine(settings: Settings) -> EngineFact:
    address = settings.docker_host or "unix://"
    try:
        with connect(settings) as host:
            return EngineFact(host.info())
    except NodeError as error:
        is_refused = isinstance(error.__cause__, PermissionError)
        return EngineFact(
            failure=error,
            admission=_admission() if is_refused else Admission.OPEN,
            is_local=address.startswith("unix://"),
            is_installed=_has_system_program("dockerd"),
        )


def _admission() -> Admission:
    """Say what a refused user may do: the login may be older than the group's list."""
    with contextlib.suppress(KeyError):
        group = grp.getgrnam("docker")
        if facts.own_name() in group.gr_mem and group.gr_gid not in os.getgroups():
            return Admission.NEW_LOGIN
    return Admission.CLOSED


def _registry_answers(settings: Settings) -> bool:
    url = f"https://{settings.hosts.container_registry}/v2/"
    try:
        bundle = str(settings.build.ca_bundle or True)
        with (
            BoundedSession(REGISTRY_TIMEOUT_S) as session,
            # Its status says all: a body is not read.
            session.get(
                url, timeout=REGISTRY_TIMEOUT_S, verify=bundle, allow_redirects=False, stream=True
            ) as answer,
        ):
            return answer.status_code in KNOWN_ANSWERS
    except requests.RequestException:
        return False


def _run(*argv: str) -> None:
    done = shell.run(argv)
    if done.exit_code:
        said = f"{done.stdout}{done.stderr}".strip()
        raise SparkdeployError(f"this failed: {' '.join(argv)}", detail=said)


def _start_engine() -> None:
    """Start it as the machine does; a package's own script may have been faster."""
    system = _system()
    if not system.has_systemd and _is_starting():
        return
    # A session of its own, holding none of our descriptors.
    _run("sh", "-c", start_engine_command(system).replace("sudo ", ""))


def _is_starting() -> bool:
    pid = facts.read_or_none(THIS_MACHINE, str(DOCKERD_PID)) or ""
    return pid.strip().isdecimal() and Path("/proc", pid.strip()).is_dir()


def _wait_for_engine(settings: Settings) -> None:
    deadline_s = time.monotonic() + ENGINE_WAIT_S
    while (seen := _engine(settings)).info is None:
        if time.monotonic() >= deadline_s:
            log = facts.read_or_none(THIS_MACHINE, ENGINE_LOG)
            raise NodeError(
                f"the Docker Engine did not answer within {ENGINE_WAIT_S:g} s",
                hint="journalctl -u docker" if log is None else f"its log is {ENGINE_LOG}",
                detail=log[-2000:] if log else str(seen.failure or ""),
            )
        time.sleep(POLL_S)


def _share_lock(folder: Path) -> None:
    """Make the lock folder at each boot, and now; one that is there stays as it is."""
    entry = Path(LOCK_ENTRY)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_text(entry, lock_entry(str(folder)))
        if shell.which("systemd-tmpfiles") is not None:
            shell.run(("systemd-tmpfiles", "--create", LOCK_ENTRY))
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o1777)
    except OSError as error:
        raise NodeError(f"{error.filename} cannot be made: {error.strerror}") from error
    console.info(f"lock folder of all users, from each boot on: {folder} ({entry})")
