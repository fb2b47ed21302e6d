"""The guard against a real child that eats memory as fast as a model that loads.

/proc/meminfo is the whole machine's, and a test may not empty that. The guard reads a file in its
form instead: what was free before, less what the child really holds (its resident set).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import DEADLINE_S, TEST_LABEL, SpecMaker, until
from tests.engine.ground import seeds

PLUGIN_TREE = Path(__file__).parents[3] / "sparkdeploy" / "vllm_plugin"
GUARD = (sys.executable, "-m", "sparkdeploy_vllm.guard")
GIB = 1 << 30
FREE_BEFORE_BYTES = 5 * GIB // 2
FLOOR_BYTES = 3 * GIB // 4
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

HUNGRY = """
import os, time
print(os.getpid(), flush=True)
held, started = [], time.monotonic()
while True:
    held.append(b"x" * (32 << 20))
    time.sleep(max(started + len(held) / 32 - time.monotonic(), 0))
"""
"""1 GiB a second, every page touched."""

DAEMON_OF_A_HUNGRY_ONE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execv(sys.executable, [sys.executable, "-c", {hungry!r}])
os.wait()
while True:
    time.sleep(60)  # what `ray start --block` does
"""

RAY_STAND_IN = """
import os, sys, time
readable, writable = os.pipe()
def daemon(count):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for _ in range(count):
            if os.fork() == 0:
                break
        os.write(writable, b"%d " % os.getpid())
        while True:
            time.sleep(60)
    os.wait()
for workers in (0, 0, 3):
    daemon(workers)
text = b""
while text.count(b" ") < 6:
    text += os.read(readable, 4096)
print(text.decode(), flush=True)
while True:
    time.sleep(60)
"""
"""Like `ray start --block`: three daemons in sessions of their own, one with three workers."""


class Mirror:
    """Keeps a meminfo file in step with one process; remembers the least it ever showed."""

    def __init__(self, path: Path) -> None:
        """Write the first figures."""
        self.least_bytes = FREE_BEFORE_BYTES
        self._file = path.open("wb", buffering=0)
        self._is_over = threading.Event()
        self.show(FREE_BEFORE_BYTES)

    def follow(self, pid: int) -> None:
        """Mirror the process until it is gone or `close` is called."""
        statm = Path(f"/proc/{pid}/statm")
        while not self._is_over.wait(0.002):
            try:
                resident_bytes = int(statm.read_text().split()[1]) * PAGE_BYTES
            except (OSError, IndexError):
                return
            self.show(FREE_BEFORE_BYTES - resident_bytes)

    def close(self) -> None:
        """End `follow`."""
        self._is_over.set()
        self._file.close()

    def show(self, available_bytes: int) -> None:
        """Write what is available now."""
        self.least_bytes = min(self.least_bytes, available_bytes)
        text = f"MemTotal: {125829120:>12} kB\nMemAvailable: {available_bytes // 1024:>12} kB\n"
        os.pwrite(self._file.fileno(), text.encode(), 0)


def guarded(script: str, meminfo: Path) -> subprocess.Popen[str]:
    options = ["--memory-floor-bytes", str(FLOOR_BYTES), "--meminfo", str(meminfo)]
    options += ["--max-restarts", "3"]
    return subprocess.Popen(
        [*GUARD, *options, "--", sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(PLUGIN_TREE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fight(script: str, meminfo: Path) -> tuple[int, list[dict[str, object]], int, int]:
    """Return exit code, what the guard said, the least memory seen and the child's pid."""
    mirror = Mirror(meminfo)
    with guarded(script, meminfo) as guard:
        try:
            assert guard.stdout is not None
            pid = int(guard.stdout.readline())
            watcher = threading.Thread(target=mirror.follow, args=(pid,))
            watcher.start()
            _, stderr = guard.communicate(timeout=DEADLINE_S)
            watcher.join(10)
        finally:
            guard.kill()
            mirror.close()
    said = [json.loads(line.partition(": ")[2]) for line in stderr.splitlines() if line]
    return guard.returncode, said, mirror.least_bytes, pid


@pytest.mark.parametrize("round_number", seeds(20, in_ci=2))
def test_a_child_that_eats_a_gib_a_second_is_stopped_above_the_floor(
    tmp_path: Path, round_number: int
) -> None:
    code, said, least_bytes, pid = fight(HUNGRY, tmp_path / "meminfo")
    assert code == 86
    assert [event["event"] for event in said if event["event"] != "memory_not_locked"] == [
        "memory_floor"
    ]
    assert least_bytes >= FLOOR_BYTES
    assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_starts_daemons_is_stopped_with_all_of_them(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "meminfo")
    with guarded(RAY_STAND_IN, tmp_path / "meminfo") as guard:
        try:
            assert guard.stdout is not None
            pids = [int(word) for word in guard.stdout.readline().split()]
            assert len({os.getsid(pid) for pid in pids}) == 3
            assert guard.poll() is None
            mirror.show(FLOOR_BYTES)
            _, stderr = guard.communicate(timeout=DEADLINE_S)
        finally:
            guard.kill()
            mirror.close()
    (said,) = [
        json.loads(line.partition(": ")[2]) for line in stderr.splitlines() if "floor" in line
    ]
    assert guard.returncode == 86
    assert said["exit_code"] == 86
    assert said["killed_processes"] == 7
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_stop_also_ends_what_was_sent_into_the_background(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "meminfo")
    idle = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with guarded(DAEMON_OF_A_HUNGRY_ONE.format(hungry=idle), tmp_path / "meminfo") as guard:
        assert guard.stdout is not None
        pid = int(guard.stdout.readline())
        guard.terminate()
        guard.wait(30)
    mirror.close()
    until(lambda: not Path(f"/proc/{pid}").exists())


@dataclass(frozen=True, slots=True)
class Ended:
    """A container that has ended."""

    exit_code: int
    was_out_of_memory: bool
    output: str


def guarded_in_a_container(
    image: str, mark: str, command: list[str], *, limit: str | None = None
) -> Ended:
    """Run the guard over a command as `up` would: another user, no capability, nothing to gain."""
    with contextlib.closing(docker.from_env()) as client:
        container = client.containers.run(
            image,
            entrypoint=["python3", "-m", "sparkdeploy_vllm.guard", "--"],
            command=command,
            environment={"PYTHONPATH": "/plugin"},
            volumes={str(PLUGIN_TREE): {"bind": "/plugin", "mode": "ro"}},
            user="65532:65532",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            network_mode="none",
            labels={TEST_LABEL: mark},
            detach=True,
            mem_limit=limit,
            memswap_limit=limit,
        )
        container.wait(timeout=DEADLINE_S)
        container.reload()
        state: dict[str, Any] = container.attrs["State"]
        return Ended(state["ExitCode"], state["OOMKilled"], container.logs().decode())


def test_our_own_containers_have_no_memory_limit_but_the_machine_s(
    host: DockerHost, make_spec: SpecMaker
) -> None:
    """The guard watches the machine; a limit of the container would be the kernel's to hold."""
    container_id = host.create(make_spec())
    with contextlib.closing(docker.from_env()) as client:
        settings = client.api.inspect_container(container_id)["HostConfig"]
    limits = ("Memory", "MemorySwap", "MemoryReservation", "KernelMemory")
    assert {name: settings.get(name) or 0 for name in limits} == dict.fromkeys(limits, 0)
    assert not settings["CgroupParent"]
    assert not settings["OomKillDisable"]


def test_under_a_limit_of_someone_else_s_the_kernel_takes_the_child_and_not_the_guard(
    python_base_image: str, mark: str
) -> None:
    survivor = ["sh", "-c", 'python3 -c "$0"; exit 9', HUNGRY]
    ended = guarded_in_a_container(python_base_image, mark, survivor, limit="192m")
    assert (ended.exit_code, ended.was_out_of_memory) == (9, True), ended.output
