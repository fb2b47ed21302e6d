"""Two machines on one: each with its own network, sshd, dockerd, /dev/shm, /run and folders.

A machine is a process namespace: when its first process ends, the kernel ends all others, with
their mounts and network cards. That process lives as long as a pipe of the test's own, so nothing
survives a test that is killed. Needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path("/var/tmp")
PREFIX = "sparkdeploy-machines-"
TWINS = (("enp1s0f1np1", "10.77.0"), ("enP2p1s0f1np1", "10.78.0"))
MTU = 9000
HOME = "/srv/spark"
"""Where each machine has folders of its own, under the same path."""
START_TIMEOUT_S = 60.0
INIT = r"""
set -eu
hostname "$NAME"
# What other programs on the real machine mount later is none of ours, and the other way round.
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/sshd /run/lock "$HOME_HERE" /root/.ssh /etc/docker /usr/local/sbin
mount --bind "$OWN/bin" /usr/local/sbin
mount --bind "$OWN/home" "$HOME_HERE"
mount --bind "$OWN/ssh" /root/.ssh
mount --bind "$OWN/etc-docker" /etc/docker
# The shell of every ssh session reads it: what somebody set up for their own work is slow there.
[ ! -e /root/.bashrc ] || mount --bind /dev/null /root/.bashrc
ip link set lo up
touch "$OWN/up"
# Not `exec`: the shell is what reaps orphans, and a zombie would count as running.
cat >/dev/null
"""
SSHD_CONFIG = """\
Port {port}
HostKey {own}/host_key
AuthorizedKeysFile /root/.ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile /run/sshd.pid
SetEnv {folders}
"""


@dataclass
class Machine:
    """One machine; its number is the last part of its addresses."""

    name: str
    number: int
    own: Path
    init: subprocess.Popen[bytes]
    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """The first process of the machine, as the real machine counts."""
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()
        return int(children[0])

    @property
    def address(self) -> str:
        """The address on the first twin."""
        return f"{TWINS[0][1]}.{self.number}"

    def command(self, *argv: str) -> list[str]:
        """The command that runs something there."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--net", "--pid", *argv]

    def run(self, script: str, *, check: bool = True, timeout_s: float = 120) -> str:
        """Run a shell script there; return what it printed."""
        done = subprocess.run(
            self.command("sh", "-c", script),
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0 or not check, f"{self.name}: {script}\n{done.stderr}"
        return done.stdout

    def give_command(self, name: str, script: str) -> None:
        """Put a program of the machine's own before the real one of that name."""
        path = self.own / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def take_command(self, name: str) -> None:
        """Remove such a program."""
        (self.own / "bin" / name).unlink()

    def start_sshd(self, port: int = 22) -> None:
        """Start its sshd and wait until it listens."""
        config = self.own / "sshd_config"
        kinds = ("config", "state", "data", "cache")
        folders = [f"SPARKDEPLOY_{kind.upper()}_DIR={HOME}/{kind}" for kind in kinds]
        # /root is the real machine's; with --on the program logs in like anybody else.
        text = SSHD_CONFIG.format(
            own=self.own, port=port, folders=" ".join([*folders, f"HF_HUB_CACHE={HOME}/hub"])
        )
        config.write_text(text)
        self._serve("sshd", "/usr/sbin/sshd", "-D", "-e", "-f", str(config))
        self._until(f"ss -Hltn | grep -q ':{port} '")

    def start_dockerd(self) -> None:
        """Start its Docker Engine and wait until it answers."""
        self._serve(
            "dockerd",
            *("dockerd", "--data-root", str(self.own / "docker"), "--exec-root", "/run/docker"),
            *("--host", "unix:///run/docker.sock", "--pidfile", "/run/dockerd.pid"),
            *("--iptables=false", "--storage-driver=overlay2", "--live-restore=false"),
        )
        self._until("docker -H unix:///run/docker.sock version")

    def stop(self, service: str) -> None:
        """Kill a service: sshd with its sessions, dockerd with its containers."""
        if service == "sshd":
            self.run("pkill -KILL -x sshd", check=False)
        else:
            self.run("kill -KILL $(cat /run/dockerd.pid)", check=False)
            self.run("pkill -KILL -x containerd", check=False)
            self.run("rm -f /run/docker.sock /run/dockerd.pid /run/docker/containerd/*.pid")
        self.services.pop(service).wait(30)

    def remove_containers(self) -> None:
        """Remove every container of this machine."""
        self.run("docker ps -aq | xargs -r docker rm -f -v")

    def empty_folders(self) -> None:
        """Remove the programs of its own and everything that it has below HOME."""
        _run("find", str(self.own / "bin"), str(self.own / "home"), "-mindepth", "1", "-delete")

    def empty_docker(self) -> Path:
        """Remove everything that its Docker Engine keeps, while that is stopped; return where."""
        root = self.own / "docker"
        shutil.rmtree(root)
        root.mkdir()
        return root

    def close(self) -> None:
        """End the machine and everything on it."""
        assert self.init.stdin is not None
        self.init.stdin.close()
        self.init.wait(30)
        for service in self.services.values():
            service.wait(30)

    def _serve(self, name: str, *argv: str) -> None:
        with (self.own / f"{name}.log").open("ab") as log:
            self.services[name] = subprocess.Popen(
                self.command(*argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _until(self, script: str) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        argv = self.command("sh", "-c", script)
        while subprocess.run(argv, check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline_s, f"{self.name}: {script} stays false"
            time.sleep(0.1)


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Build both, joined by two cables; tear down at the end of the block."""
    remove_left_behind()
    root = ROOT / f"{PREFIX}{os.getpid()}"
    root.mkdir(mode=0o755)
    machines: list[Machine] = []
    try:
        for name, number in (("spark-a", 11), ("spark-b", 12)):
            machines.append(_boot(root / name, name, number))
        first, second = machines
        for interface, _ in TWINS:
            join(first, second, interface)
        _trust(first, second)
        for machine in machines:
            machine.start_sshd()
            machine.start_dockerd()
        yield first, second
    finally:
        for machine in machines:
            machine.close()
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def third_machine(first: Machine, second: Machine) -> Iterator[Machine]:
    """Build one more; while it is there its bridges stand in the place of the cables."""
    third = _boot(first.own.parent / "spark-c", "spark-c", 13)
    try:
        for interface, _ in TWINS:
            _join_all(third, (first, second), interface)
        _trust(first, second, third)
        third.start_sshd()
        third.start_dockerd()
        yield third
    finally:
        # Before its network goes, which takes a while: the names are needed at once.
        for machine, (interface, _) in itertools.product((first, second), TWINS):
            machine.run(f"ip link delete {interface}", check=False)
        third.close()
        _trust(first, second)
        for interface, _ in TWINS:
            join(first, second, interface)


def _join_all(switch: Machine, others: Sequence[Machine], interface: str) -> None:
    """Take the cable out, and put one into each machine that ends at a bridge of `switch`."""
    others[0].run(f"ip link delete {interface}")
    switch.run(f"ip link add {interface} type bridge")
    for machine in others:
        port = f"{interface[:8]}-{machine.number}"
        _run("ip", "link", "add", interface, "netns", str(machine.pid), "type", "veth", "peer",
             "name", port, "netns", str(switch.pid))  # fmt: skip
        switch.run(f"ip link set {port} mtu {MTU} master {interface} up")
        configure(machine, interface)
    configure(switch, interface)


def join(first: Machine, second: Machine, interface: str) -> None:
    """Put a cable between two machines, with addresses and full-size frames."""
    _run("ip", "link", "add", interface, "netns", str(first.pid), "type", "veth", "peer", "name",
         interface, "netns", str(second.pid))  # fmt: skip
    for machine in (first, second):
        configure(machine, interface)


def configure(machine: Machine, interface: str) -> None:
    """Give an interface the address and the MTU it should have, and set it up."""
    prefix = dict(TWINS)[interface]
    machine.run(
        f"ip link set {interface} mtu {MTU} up; ip address flush dev {interface}; "
        f"ip address add {prefix}.{machine.number}/24 dev {interface}"
    )


def cluster_section(machines: Sequence[Machine]) -> dict[str, object]:
    """What config.yaml says of them under `cluster:`."""
    return {
        "nodes": [
            {
                "name": machine.name,
                "ssh": machine.address,
                "user": "root",
                "fabric": [
                    {"interface": interface, "address": f"{prefix}.{machine.number}/24"}
                    for interface, prefix in TWINS
                ],
            }
            for machine in machines
        ]
    }


def remove_left_behind() -> None:
    """Remove the folders of tests that were killed."""
    for folder in ROOT.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX)
        if not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _boot(own: Path, name: str, number: int) -> Machine:
    for folder in ("bin", "home", "ssh", "etc-docker", "docker"):
        (own / folder).mkdir(parents=True)
    (own / "ssh").chmod(0o700)
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / "host_key"))
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / "ssh" / "id_ed25519"))
    Path(HOME).mkdir(parents=True, exist_ok=True)
    init = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "--uts", "--net", "--pid", "--fork",
         "--kill-child=KILL", "--mount-proc", "sh", "-c", INIT],
        stdin=subprocess.PIPE,
        env={**os.environ, "NAME": name, "OWN": str(own), "HOME_HERE": HOME},
        start_new_session=True,
    )  # fmt: skip
    machine = Machine(name, number, own, init)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not (own / "up").exists():
        assert time.monotonic() < deadline_s, f"{name} did not start"
        time.sleep(0.05)
    return machine


def _trust(*machines: Machine) -> None:
    """Let each log in to the others, and know their host keys."""
    keys = "".join((m.own / "ssh" / "id_ed25519.pub").read_text() for m in machines)
    known = "".join(
        f"{machine.address} {(machine.own / 'host_key.pub').read_text()}" for machine in machines
    )
    for machine in machines:
        (machine.own / "ssh" / "authorized_keys").write_text(keys)
        (machine.own / "ssh" / "known_hosts").write_text(known)


def _run(*argv: str) -> None:
    done = subprocess.run(list(argv), check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(argv)}\n{done.stderr}"
