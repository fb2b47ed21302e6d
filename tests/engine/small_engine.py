"""A Docker Engine of a test's own on a disk of a few megabytes, which may fill up or be killed.

It lives in mount, process and network namespaces of its own: the machine's engine never sees it
(a second daemon told to have no bridge takes the first one's bridge away), and when the
namespace's first process ends, everything in it ends, the disk too. Builds have no network.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkdeploy.errors import NodeError
from sparkdeploy.node.host import DockerHost
from tests.engine.namespaces import children_of, network_of

START_DEADLINE_S = 60.0
DISK_MIB = 96


@dataclass(frozen=True)
class EngineProgram:
    """Which Docker Engine runs, and what keeps its images."""

    usr: Path | None = None
    """A /usr with another one (other_engines.py); None is the machine's own."""
    store: Literal["classic", "containerd"] = "classic"

    def options(self, folder: Path) -> tuple[str, ...]:
        """Return the options of dockerd that choose the store; `folder` is for its settings."""
        if self.store == "classic" and self.usr is None:
            return ("--storage-driver", "overlay2")
        settings = folder / "daemon.json"
        # Said in both cases: the default is another one from 29 on.
        features = {"containerd-snapshotter": self.store == "containerd"}
        settings.write_text(json.dumps({"features": features}))
        return ("--config-file", str(settings))


OWN_PROGRAM = EngineProgram()


@dataclass
class SmallEngine:
    """One dockerd; `folder` holds its socket, its log and the mount point of its disk."""

    folder: Path
    init_pid: int
    program: EngineProgram = OWN_PROGRAM
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"unix://{self.folder}/docker.sock"

    @property
    def disk(self) -> Path:
        """Its disk, as a process outside reaches it."""
        return Path(f"/proc/{self.init_pid}/root{self.folder}/disk")

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        argv = (
            "nsenter", f"--target={self.init_pid}", "--mount", "--pid", "--net", "--",
            "dockerd", "--host", self.address,
            "--data-root", f"{self.folder}/disk/root", *self.program.options(self.folder),
            "--exec-root", "/run/docker", "--pidfile", "/run/docker.pid",
            "--bridge", "none", "--iptables=false", "--ip-masq=false",
        )  # fmt: skip
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
        deadline_s = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            alive = self.daemon.poll() is None and time.monotonic() < deadline_s
            assert alive, (self.folder / "daemon.log").read_text()[-3000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """End the daemon at once, as a crash would; what runs in containers goes on."""
        assert self.daemon is not None
        for pid in children_of(self.daemon.pid):
            os.kill(pid, signal.SIGKILL)
        self.daemon.wait()
        (self.folder / "docker.sock").unlink(missing_ok=True)
        Path(f"/proc/{self.init_pid}/root/run/docker.pid").unlink(missing_ok=True)

    def network(self) -> AbstractContextManager[None]:
        """Put this thread, and what it starts, where a container on the host's network listens."""
        return network_of(self.init_pid)

    def processes(self, words: bytes) -> list[int]:
        """Find what runs on it, in containers or not, by words of the command line."""
        # Orphans go to the namespace's first process; the daemon came from outside.
        found = []
        queue = [self.init_pid] + ([self.daemon.pid] if self.daemon is not None else [])
        while queue:
            pid = queue.pop()
            with contextlib.suppress(OSError):
                queue += _offspring(pid)
                if words in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def open_files(self) -> int:
        """Count the files that the daemon holds open."""
        assert self.daemon is not None
        (pid,) = children_of(self.daemon.pid)
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    def resize(self, size_mib: int) -> None:
        """Make the disk larger or smaller, but not smaller than what it holds."""
        disk = f"{self.folder}/disk"
        argv = ("nsenter", f"--target={self.init_pid}", "--mount", "--",
                "mount", "-o", f"remount,size={size_mib}m", disk)  # fmt: skip
        subprocess.run(argv, check=True)

    def fill(self, *, leave_bytes: int) -> None:
        """Fill the disk until no more than this is free."""
        disk = os.statvfs(self.disk)
        with (self.disk / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, disk.f_bavail * disk.f_frsize - leave_bytes)

    def free(self) -> None:
        """Give that space back."""
        (self.disk / "filler").unlink(missing_ok=True)

    def _answers(self) -> bool:
        with contextlib.suppress(NodeError), DockerHost(self.address):
            return True
        return False


@contextlib.contextmanager
def small_engine(
    disk_mib: int = DISK_MIB, program: EngineProgram = OWN_PROGRAM
) -> Iterator[SmallEngine]:
    """Start one; at the end it and all that it holds are gone. The disk is memory."""
    # Every other path stays the machine's, so containers mount what the test wrote.
    programs = f" && mount --bind {program.usr} /usr" if program.usr is not None else ""
    with tempfile.TemporaryDirectory(prefix="small-engine-") as name:
        folder = Path(name)
        (folder / "disk").mkdir()
        prepare = (
            f"mount -t tmpfs -o size={disk_mib}m tmpfs {folder}/disk"
            f" && mount -t tmpfs tmpfs /run && ip link set lo up{programs} && echo ready"
            # A first process has to reap: a dead containerd that stays would count as running.
            " && while :; do sleep 3600 & wait $!; done"
        )
        argv = ("unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork",
                "--mount-proc", "--kill-child", "sh", "-c", prepare)  # fmt: skip
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as namespace:
            try:
                assert namespace.stdout is not None
                assert namespace.stdout.readline() == "ready\n", "no namespace: is this root?"
                engine = SmallEngine(folder, children_of(namespace.pid)[0], program)
                engine.start()
                yield engine
            finally:
                namespace.kill()
        if engine.daemon is not None:
            engine.daemon.wait()


def _offspring(pid: int) -> list[int]:
    """Return the children of all of a process's threads."""
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
