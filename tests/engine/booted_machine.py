"""A machine that boots, by systemd-nspawn: systemd is its first process and starts its Docker.

Its programs are this machine's own (/usr, read-only), its settings and its disk are a folder of the
test's, and its network is its own. It may be booted again, and what lies on its disk stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import until
from tests.engine.namespaces import children_of, network_of

CHECKOUT = Path(__file__).parents[2]
SYSTEMD = "/usr/lib/systemd/systemd"
ASKS_FOR_A_REBOOT = 133
"""What systemd-nspawn exits with when it has no unit of its own; with one it boots by itself."""
SETTINGS = (
    *("alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf"),
    *("passwd", "protocols", "services"),
)
"""Of this machine's /etc: without them its programs are not found or know no users."""
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
WANTED = {
    "multi-user.target.wants": ("docker.service", "containerd.service", "cgroups.service"),
    "sockets.target.wants": ("docker.socket",),
}
MASKED = (
    # Of the kernel there is one: its devices, modules and settings are this machine's.
    *("proc-sys-fs-binfmt_misc.automount", "systemd-binfmt.service", "systemd-sysctl.service"),
    *("systemd-modules-load.service", "systemd-udev-trigger.service", "systemd-udevd.service"),
    *("systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-timesyncd.service"),
    *("getty.target", "console-getty.service"),
)
CGROUPS = """\
[Unit]
Description=Control groups of the first version, which systemd-nspawn mounts read-only
ConditionPathExists=/sys/fs/cgroup/memory
Before=docker.service containerd.service

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for it in /sys/fs/cgroup/*/; do mount -o remount,bind,rw "$it" || :; done'
"""


@dataclass
class BootedMachine:
    """One machine; `folder` is its root, `argv` boots it."""

    folder: Path
    argv: tuple[str, ...]
    nspawn: subprocess.Popen[bytes] | None = None

    @property
    def init_pid(self) -> int:
        """Its systemd, as it is seen from outside; another one after each boot."""
        return self._inits()[0]

    @property
    def address(self) -> str:
        """Where its Docker Engine listens, as a process outside reaches it."""
        return f"unix:///proc/{self.init_pid}/root/run/docker.sock"

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Put this thread where its containers listen."""
        with network_of(self.init_pid):
            yield

    def run(
        self, *argv: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on it, from the checkout; return what it said, whatever its exit code."""
        spaces = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup")
        words = [f"{name}={value}" for name, value in (env or {}).items()]
        return subprocess.run(
            ("nsenter", f"--target={self.init_pid}", *spaces, f"--wdns={CHECKOUT}", "--",
             "env", "--ignore-environment", f"PATH={os.defpath}:/usr/sbin", *words, *argv),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def boot(self) -> None:
        """Switch it on; return when its Docker Engine answers."""
        with self.console.open("ab") as console:
            self.nspawn = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
            )
        self._wait_for_docker()

    def reboot(self) -> None:
        """Let its systemd end everything, and boot it again."""
        assert self.nspawn is not None
        ended, before = self.nspawn.poll, self.init_pid
        self.run("systemctl", "reboot")
        until(lambda: ended() is not None or self._inits()[:1] not in ([], [before]))
        if ended() is None:
            self._wait_for_docker()
            return
        assert ended() == ASKS_FOR_A_REBOOT, self.console.read_text()[-3000:]
        self.boot()

    def end(self) -> None:
        """Let it power off; a machine that does not is switched off."""
        if self.nspawn is None:
            return
        self.nspawn.send_signal(signal.SIGTERM)
        try:
            self.nspawn.wait(60)
        except subprocess.TimeoutExpired:
            self.nspawn.kill()
            self.nspawn.wait()

    @property
    def console(self) -> Path:
        """What it said while it booted."""
        return self.folder.with_name("console")

    def _inits(self) -> list[int]:
        assert self.nspawn is not None
        with contextlib.suppress(FileNotFoundError):
            return children_of(self.nspawn.pid)
        return []

    def _wait_for_docker(self) -> None:
        until(self._answers)

    def _answers(self) -> bool:
        assert self.nspawn is not None
        assert self.nspawn.poll() is None, self.console.read_text()[-3000:]
        # Before it is systemd, that process sees this machine's files, and this machine's Docker.
        with contextlib.suppress(NodeError, OSError, IndexError):
            if Path(f"/proc/{self.init_pid}/exe").readlink() == Path(SYSTEMD):
                with DockerHost(self.address):
                    return True
        return False


@contextlib.contextmanager
def booted_machine(shared: Path) -> Iterator[BootedMachine]:
    """Boot one that sees `shared` under its own path; at the end it and its disk are gone.

    Skips where systemd-nspawn cannot boot anything.
    """
    _skip_unless_possible()
    with tempfile.TemporaryDirectory(prefix="booted-machine-", dir="/var/tmp") as name:
        folder = Path(name) / "root"
        _furnish(folder)
        with _cgroup() as enter:
            machine = BootedMachine(
                folder, ("sh", "-c", f'{enter}exec "$@"', "sh", *_nspawn(folder, shared))
            )
            try:
                machine.boot()
                yield machine
            finally:
                machine.end()


def _skip_unless_possible() -> None:
    for program in ("systemd-nspawn", SYSTEMD, "dockerd", "containerd"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("systemd-nspawn boots a machine for root alone")


def _furnish(folder: Path) -> None:
    """Write what is not a program: users, links, and which units start."""
    units = folder / "etc/systemd/system"
    for name in ("usr/lib", "var", "run", "root", "etc/systemd/system"):
        (folder / name).mkdir(parents=True)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    for name in SETTINGS:
        _copy(Path("/etc") / name, folder / "etc" / name)
    # systemd-nspawn looks for it before it mounts anything.
    _copy(Path("/usr/lib/os-release"), folder / "usr/lib/os-release")
    (folder / "etc/os-release").symlink_to("../usr/lib/os-release")
    (folder / "etc/machine-id").write_text(f"{'5a' * 16}\n")
    (units / "cgroups.service").write_text(CGROUPS)
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    for target, names in WANTED.items():
        (units / target).mkdir()
        for name in names:
            own = units / name
            (units / target / name).symlink_to(
                own if own.exists() else f"/usr/lib/systemd/system/{name}"
            )
    for name in MASKED:
        (units / name).symlink_to("/dev/null")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    elif source.exists():
        shutil.copy2(source, target)


def _nspawn(folder: Path, shared: Path) -> tuple[str, ...]:
    programs = {str(CHECKOUT), sys.prefix, sys.base_prefix}
    outside = sorted(it for it in programs if not it.startswith("/usr/"))
    return (
        "systemd-nspawn", f"--directory={folder}", "--machine=spark", "--boot", "--console=pipe",
        "--register=no", *(() if _is_under_systemd() else ("--keep-unit",)),
        "--private-network", "--resolv-conf=off", "--timezone=off", "--link-journal=no",
        # What a Docker Engine of its own needs.
        "--capability=all", "--system-call-filter=add_key keyctl bpf",
        "--bind-ro=/usr", *(f"--bind-ro={it}" for it in outside), f"--bind={shared}",
    )  # fmt: skip


def _is_under_systemd() -> bool:
    """As sd_booted(3): elsewhere nobody gives out a scope, and the machine stays in its group."""
    return Path("/run/systemd/system").is_dir()


@contextlib.contextmanager
def _cgroup() -> Iterator[str]:
    """Yield what a shell runs to be in a control group of its own, where nobody gives one."""
    if _is_under_systemd():
        yield ""
        return
    top = Path("/sys/fs/cgroup")
    trees = [it for it in (top / "systemd", top / "unified") if it.is_dir()] or [top]
    groups = [it / f"sparkdeploy-test-{os.getpid()}" for it in trees]
    for group in groups:
        group.mkdir()
    try:
        yield "".join(f"echo $$ >{group}/cgroup.procs && " for group in groups)
    finally:
        for path in (path for group in groups for path, _, _ in os.walk(group, topdown=False)):
            with contextlib.suppress(OSError):
                Path(path).rmdir()
