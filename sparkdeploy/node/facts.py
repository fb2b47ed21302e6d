"""What a machine is and what is free on it; its GPUs as `nvidia-smi` tells of them."""

import os
import platform
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from sparkdeploy.errors import NodeError
from sparkdeploy.node.fabric import FabricFact
from sparkdeploy.node.node import Node
from sparkdeploy.node.reports import CONTAINERD_ROOT, EngineInfo
from sparkdeploy.node.shared_files import user_name
from sparkdeploy.shell import Completed

Architecture = Literal["x86_64", "aarch64"]
_SPELLINGS: Mapping[str, Architecture] = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}
"""What kernels and Docker Engines call the processors that there is a vLLM for."""
QUERY_TIMEOUT_S = 10.0
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
MIB = 2**20
_HIDES_LOG = "/proc/sys/kernel/dmesg_restrict"
_CONTAINERD_ROOT = re.compile(r"""^root[ \t]*=[ \t]*["'](/[^"'\n]+)["']""", re.MULTILINE)
VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})+")


def _query(fields: str) -> tuple[str, ...]:
    return ("nvidia-smi", f"--query-{fields}", "--format=csv,noheader,nounits")


GPU_QUERY = _query(
    "gpu=name,compute_cap,memory.total,driver_version,clocks.sm,clocks.max.sm,utilization.gpu"
)
PROCESS_QUERY = _query("compute-apps=pid,process_name,used_memory")
LOAD_QUERY = _query("gpu=clocks.sm,temperature.gpu,power.draw")


class Machine(Protocol):
    """What facts are read through: this machine, one behind ssh, or a recording of one."""

    # Both raise NodeError: for what cannot be read, cannot start or takes too long.
    def read_file(self, path: str) -> str: ...
    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed: ...


@dataclass(frozen=True, slots=True)
class GpuFact:
    """One GPU; None means that the driver did not say."""

    name: str
    compute_capability: str | None = None
    memory_bytes: int | None = None
    """On a Spark None: nvidia-smi says `[N/A]`, the memory is the machine's own."""
    driver_version: str | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    utilization_percent: int | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Every GPU of a machine, or why none was seen."""

    gpus: tuple[GpuFact, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    name: str
    memory_bytes: int | None = None
    container_id: str | None = None
    """None for a process of the host's own."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One look at the first GPU; None means that the driver did not say."""

    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A machine: what it is and what is free on it. None means: could not be observed."""

    name: str
    architecture: Architecture
    """Of its Docker Engine, which builds and runs the images; the machine's own without one."""
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    gpu: GpuFact | None
    docker: EngineInfo | None
    docker_free_bytes: int | None = None
    data_free_bytes: int | None = None
    meminfo: Mapping[str, int] = field(default_factory=dict)
    """The kernel's figures in bytes, by their own names."""
    gpu_failure: str | None = None
    gpu_processes: tuple[GpuProcess, ...] = ()
    gpu_count: int = 0
    shows_kernel_log: bool = False
    """Whether a container without rights may read it, where the driver tells of failures."""
    fabric: FabricFact | None = None
    """Its place among the others; None where nobody asked, as for a machine that serves alone."""


THIS_MACHINE = Node("this machine")


def read_or_none(machine: Machine, path: str) -> str | None:
    """Return a text file, or None where there is none that this user may read."""
    try:
        return machine.read_file(path)
    except NodeError:
        return None


def output_or_none(machine: Machine, argv: Sequence[str], *, timeout_s: float) -> str | None:
    """Return what a program printed, or None when it is missing, slow, or failed."""
    try:
        done = machine.run(argv, timeout_s=timeout_s)
    except NodeError:
        return None
    return done.stdout if done.exit_code == 0 else None


def look_at(
    machine: Machine,
    name: str,
    docker: EngineInfo | None,
    models: Path,
    fabric: FabricFact | None = None,
) -> NodeFact:
    """Return what a machine is and what is free on it; NodeError for what no vLLM is built for."""
    memory = read_meminfo(machine)
    seen = read_gpus(machine)
    if docker is not None and docker.root_dir == CONTAINERD_ROOT:
        docker = replace(docker, root_dir=containerd_root(machine))
    root = docker.root_dir if docker is not None else None
    return NodeFact(
        name=name,
        architecture=architecture_of(docker, machine),
        memory_total_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        gpu=next(iter(seen.gpus), None),
        docker=docker,
        docker_free_bytes=free_bytes_on(machine, Path(root)) if root else None,
        data_free_bytes=free_bytes_on(machine, models),
        meminfo=memory,
        gpu_failure=seen.failure,
        gpu_processes=read_gpu_processes(machine) if seen.gpus else (),
        gpu_count=len(seen.gpus),
        shows_kernel_log=bool(seen.gpus) and read_or_none(machine, _HIDES_LOG) in ("0", "0\n"),
        fabric=fabric,
    )


def containerd_root(machine: Machine) -> str:
    """Return containerd's own root, of its configuration, where that moves it to another disk."""
    text = read_or_none(machine, "/etc/containerd/config.toml") or ""
    # What stands behind the first table is another's root.
    found = _CONTAINERD_ROOT.search(text.partition("\n[")[0])
    return found[1] if found else CONTAINERD_ROOT


def read_meminfo(machine: Machine = THIS_MACHINE) -> Mapping[str, int]:
    """Return the kernel's memory figures in bytes; empty where there are none."""
    return parse_meminfo(read_or_none(machine, "/proc/meminfo") or "")


def parse_meminfo(text: str) -> Mapping[str, int]:
    figures: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            figures[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return figures


def read_gpus(machine: Machine = THIS_MACHINE) -> GpuReading:
    try:
        done = machine.run(GPU_QUERY, timeout_s=QUERY_TIMEOUT_S)
    except NodeError as error:
        return GpuReading(failure=error.message)
    gpus = parse_gpus(done.stdout) if done.exit_code == 0 else ()
    if gpus:
        return GpuReading(gpus)
    words = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return GpuReading(failure=words[0] if words else f"nvidia-smi ended with {done.exit_code}")


def read_gpu_processes(machine: Machine = THIS_MACHINE) -> tuple[GpuProcess, ...]:
    output = output_or_none(machine, PROCESS_QUERY, timeout_s=QUERY_TIMEOUT_S)

    def container_of(pid: int) -> str | None:
        # A process's cgroup names the container, in v1 and v2 alike.
        match = CONTAINER_ID.search(read_or_none(machine, f"/proc/{pid}/cgroup") or "")
        return match.group() if match else None

    found = parse_gpu_processes(output or "")
    return tuple(replace(item, container_id=container_of(item.pid)) for item in found)


def parse_gpus(output: str) -> tuple[GpuFact, ...]:
    """Read the output of GPU_QUERY; lines of another shape are left out."""
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines()]
    # A driver that answers with name and version alone has a GPU all the same.
    pairs = [row for row in rows if len(row) == 2 and row[0] and VERSION.fullmatch(row[1])]
    short = [[name, "", "", version, "", "", ""] for name, version in pairs]
    return tuple(_gpu(row) for row in (*short, *rows) if len(row) == 7)


def parse_gpu_processes(output: str) -> tuple[GpuProcess, ...]:
    """Read the output of PROCESS_QUERY; a name may hold commas."""
    rows = (re.fullmatch(r"\s*(\d+)\s*,(.*),(.*)", line) for line in output.splitlines())
    return tuple(GpuProcess(int(it[1]), it[2].strip(), _bytes(it[3].strip())) for it in rows if it)


def parse_gpu_load(output: str) -> GpuLoad | None:
    """Read the first line of LOAD_QUERY's output; None for any other shape."""
    fields = [field.strip() for field in output.strip().partition("\n")[0].split(",")]
    numbers = (float(it) if re.fullmatch(r"\d+(\.\d+)?", it) else None for it in fields)
    return GpuLoad(*numbers) if len(fields) == 3 else None


def _gpu(row: list[str]) -> GpuFact:
    name, capability, memory, driver, clock, max_clock, utilization = row
    return GpuFact(
        name=name,
        compute_capability=capability if VERSION.fullmatch(capability) else None,
        memory_bytes=_bytes(memory),
        driver_version=driver if VERSION.fullmatch(driver) else None,
        sm_clock_mhz=_number(clock),
        max_sm_clock_mhz=_number(max_clock),
        utilization_percent=_number(utilization),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _bytes(text: str) -> int | None:
    mebibytes = _number(text)
    return None if mebibytes is None else mebibytes * MIB


def architecture_of(docker: EngineInfo | None, machine: Machine = THIS_MACHINE) -> Architecture:
    """Return what images have to be for; where no Docker answers, what the processor is."""
    # An engine may be another machine's, or emulated: it alone knows what it can run.
    found = docker.architecture if docker is not None else ""
    return known_architecture(found) if found else architecture(machine)


def known_architecture(name: str) -> Architecture:
    """Return our word for a kernel's or a Docker Engine's; NodeError when there is no vLLM."""
    found = spelled(name)
    if found is None:
        raise NodeError(f"there is no vLLM for {name}", hint="use a machine with x86_64 or aarch64")
    return found


def spelled(name: str) -> Architecture | None:
    """Return our word, also where a variant follows, as in arm64/v8; None for any other."""
    return _SPELLINGS.get(name.lower().partition("/")[0])


def architecture(machine: Machine = THIS_MACHINE) -> Architecture:
    """Return what the kernel calls the processor; NodeError for one no engine is built for."""
    if not isinstance(machine, Node) or machine.is_here:
        return known_architecture(platform.machine())
    return known_architecture(machine.run(("uname", "-m")).stdout.strip())


def free_bytes(path: Path) -> int | None:
    """Return what is free where a path is or would be; None when unknown."""
    current = path.absolute()
    while not current.exists() and current != current.parent:
        current = current.parent
    try:
        return shutil.disk_usage(current).free
    except OSError:
        return None


def free_bytes_on(machine: Machine, path: Path) -> int | None:
    if not isinstance(machine, Node) or machine.is_here:
        return free_bytes(path)
    script = (
        f'p={shlex.quote(str(path))}; while [ ! -e "$p" ]; do p=$(dirname "$p"); done; '
        'df -B1 --output=avail "$p" | tail -n 1'
    )
    output = machine.script(script).stdout.strip()
    return int(output) if output.isdigit() else None


def own_name() -> str:
    return user_name(os.geteuid())


def is_another(user: str) -> bool:
    """Say whether a label's user is somebody else; an empty one tells of nobody."""
    return user not in {"", own_name()}
