"""One machine: its processor and GPU, its memory, sparkdeploy's folders, and its network."""

from __future__ import annotations

import functools
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import yaml_text
from sparkdeploy.checks.finding import Finding, fail, not_seen, ok, warn
from sparkdeploy.node.lock import made_anew
from sparkdeploy.node.shared_files import ROOT_UID, user_name
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.checks.host_facts import Folder, NeededHost
    from sparkdeploy.node.facts import GpuFact, GpuProcess

SPARK_CAPABILITY = "12.1"
OLDEST_CAPABILITY = (8, 0)
"""INT4 Marlin's kernels need Ampere."""
OLDEST_DRIVER = 580
"""CUDA 13 needs the driver branch 580 (NVIDIA's CUDA compatibility table)."""
BUSY_PERCENT = 50
STUCK_SHARE = 0.4
"""A busy GB10 that was stuck ran at 702 of about 3000 MHz (eugr/spark-vllm-docker#334)."""
UNSTICK = "sudo nvidia-smi -rgc; if it stays, switch the machine off and unplug it for a minute"
SWAPPED_BYTES = 2**30
REVIVE_DRIVER = "sudo reboot, after an update of the driver; else `sudo dmesg | grep -i nvrm`"
DROP_CACHES = "sync && echo 3 | sudo tee /proc/sys/vm/drop_caches"
_FOLDER = "`sparkdeploy config` shows its folder"
NEEDED_FOR = {
    "hub": (
        "downloads of models",
        f"set `hub` in config.yaml ({_FOLDER}), or copy the model into HF_HUB_CACHE",
    ),
    "package_index": (
        "image builds",
        f"set `index_url` or `wheelhouse` in config.yaml ({_FOLDER}), or a proxy",
    ),
    "container_registry": (
        "base images",
        f"set `container_registry` in config.yaml ({_FOLDER}); without one the base is made from "
        "Debian packages",
    ),
}
"""For each host: what fails without it, and the fix."""
KNOWN_PORTS = {
    6379: "Ray's store",
    8265: "Ray's dashboard, which runs any job it is sent",
    11434: "Ollama",
}
"""Ports of model servers that answer anyone when they are left open."""


def check_architecture(found: str | None) -> Finding:
    check = "machine.architecture"
    if found is None:
        return not_seen(check, "`uname -m` did not answer")
    if found in {"aarch64", "x86_64"}:
        return ok(check, found)
    fix = "use a machine with x86_64 or aarch64 processors"
    return fail(check, f"there is no vLLM for {found}", fix)


def check_system(name: str | None) -> Finding:
    check = "machine.system"
    return ok(check, name) if name else not_seen(check, "/etc/os-release cannot be read")


def check_gpu(
    gpu: GpuFact | None, failure: str | None, *, node: str, engine: str, rehearsed: str | None
) -> Finding:
    """Check that there is a GPU at all; `failure` is nvidia-smi's message when there is none.

    `rehearsed` is the recipe, where a rehearsal with an engine of sparkdeploy would test it.
    """
    check = "machine.gpu"
    if gpu is not None:
        return ok(check, gpu.name)
    if failure is None or "not installed" in failure:
        small = f", or try the recipe in miniature: sparkdeploy rehearse {rehearsed}"
        fix = f"run this on the Spark{small if rehearsed else ''}"
        return fail(check, f"GPU: none was found on {node}, and engine {engine} needs one", fix)
    seen = f"GPU: none was found on {node}, nvidia-smi says: {failure}"
    return fail(check, seen, REVIVE_DRIVER)


def gpu_findings(gpu: GpuFact) -> Iterator[Finding]:
    yield _check_capability(gpu)
    yield _check_driver(gpu)
    yield _check_clocks(gpu)


def _check_capability(gpu: GpuFact) -> Finding:
    check = "machine.compute_capability"
    if gpu.compute_capability is None:
        return not_seen(check, "the driver does not name the GPU's compute capability")
    seen = f"compute capability {gpu.compute_capability}"
    if gpu.compute_capability == SPARK_CAPABILITY:
        return ok(check, seen)
    major, _, minor = gpu.compute_capability.partition(".")
    if (int(major), int(minor or 0)) < OLDEST_CAPABILITY:
        return fail(check, f"{seen}: INT4 weights need 8.0", "use a GPU of 2020 or newer")
    return warn(
        check,
        f"{seen}, a Spark has {SPARK_CAPABILITY}: the recipes' figures and settings are a Spark's",
        "sparkdeploy plan --hardware here",
    )


def _check_driver(gpu: GpuFact) -> Finding:
    check = "machine.driver"
    if gpu.driver_version is None:
        return not_seen(check, "nvidia-smi does not name the driver's version")
    seen = f"driver {gpu.driver_version}"
    row = failing("driver", gpu.driver_version)
    if row is not None:
        return warn(check, f"{seen}: {row.describe()}", row.fix)
    if int(gpu.driver_version.partition(".")[0]) < OLDEST_DRIVER:
        too_old = f"{seen} is too old for CUDA 13, which needs {OLDEST_DRIVER}"
        install = f"sudo apt-get install nvidia-driver-{OLDEST_DRIVER}-open && sudo reboot"
        return fail(check, too_old, install)
    return ok(check, seen)


def _check_clocks(gpu: GpuFact) -> Finding:
    """Check that a busy GPU does not run far under its clock; an idle one may."""
    check = "machine.clocks"
    clock, highest = gpu.sm_clock_mhz, gpu.max_sm_clock_mhz
    if clock is None or not highest or gpu.utilization_percent is None:
        return not_seen(check, "nvidia-smi does not name clocks and utilisation")
    seen = f"SM clock {clock} of {highest} MHz at {gpu.utilization_percent} % load"
    if gpu.utilization_percent >= BUSY_PERCENT and clock < STUCK_SHARE * highest:
        return warn(check, f"{seen}: stuck low", UNSTICK)
    return ok(check, seen)


def check_other_users(processes: tuple[GpuProcess, ...], own_containers: frozenset[str]) -> Finding:
    check = "gpu.other_users"
    foreign = [item for item in processes if item.container_id not in own_containers]
    if not foreign:
        return ok(check, "no other program computes on the GPU")
    seen = f"also on the GPU: {', '.join(map(_describe, foreign))}; memory is shared with them"
    return warn(check, seen, f"stop them, for example: kill {foreign[0].pid}")


def _describe(process: GpuProcess) -> str:
    name = process.name.rpartition("/")[2] or "a process"
    memory = f", {format_gib(process.memory_bytes)}" if process.memory_bytes is not None else ""
    place = f" in container {process.container_id[:12]}" if process.container_id else ""
    return f"{name} (pid {process.pid}{place}{memory})"


def check_swap(meminfo: Mapping[str, int]) -> Finding:
    """Check that little is swapped out: swapping ends in a freeze."""
    check = "machine.swap"
    if "SwapTotal" not in meminfo or "SwapFree" not in meminfo:
        return not_seen(check, "the kernel does not say how much swap there is")
    used_bytes = meminfo["SwapTotal"] - meminfo["SwapFree"]
    seen = f"{format_gib(used_bytes)} of {format_gib(meminfo['SwapTotal'])} swap in use"
    if used_bytes <= SWAPPED_BYTES:
        return ok(check, seen)
    return warn(
        check,
        f"{seen}: memory has been short, and a start will be slow or freeze the machine",
        "stop what is large (`ps aux --sort=-rss | head`), then: sudo swapoff -a && sudo swapon -a",
    )


def check_page_cache(meminfo: Mapping[str, int], needed_bytes: int | None) -> Finding:
    """Check that CUDA sees the memory that the kernel would give back.

    On unified memory CUDA counts the page cache as taken, and vLLM refuses to start although
    MemAvailable is enough.
    """
    check = "machine.page_cache"
    if "MemFree" not in meminfo or "MemAvailable" not in meminfo:
        return not_seen(check, "the kernel does not say how much memory is free")
    cached_bytes = meminfo.get("Cached", 0) + meminfo.get("Buffers", 0)
    seen = f"{format_gib(meminfo['MemFree'])} free beside {format_gib(cached_bytes)} of page cache"
    if needed_bytes is None or not meminfo["MemFree"] < needed_bytes <= meminfo["MemAvailable"]:
        return ok(check, seen)
    needed = f"CUDA may count the cache as taken, and {format_gib(needed_bytes)} are needed"
    return warn(check, f"{seen}: {needed}", DROP_CACHES)


def check_oom_kills(vmstat: str | None) -> Finding:
    check = "machine.oom_kills"
    counts = dict(line.split(maxsplit=1) for line in (vmstat or "").splitlines() if " " in line)
    if not counts.get("oom_kill", "").strip().isdecimal():
        return not_seen(check, "the kernel does not count programs it killed for memory")
    count = int(counts["oom_kill"])
    if count == 0:
        return ok(check, "the kernel has killed nothing for memory since the start")
    killed = f"{count} program{'s' if count > 1 else ''}"
    seen = f"the kernel has killed {killed} for memory since the machine started"
    return warn(check, seen, "sudo dmesg | grep -i 'killed process'")


def folder_findings(folders: Iterable[Folder], *, caller_uid: int) -> Iterator[Finding]:
    for folder in folders:
        check = f"folders.{folder.role}"
        if folder.owner_uid is None:
            yield ok(check, f"{folder.path} does not exist yet; it is created when needed")
        elif folder.role == "lock":
            yield _check_lock(check, folder, folder.owner_uid, caller_uid)
        elif folder.is_writable:
            yield ok(check, folder.path)
        else:
            seen = f"uid {caller_uid} cannot write {folder.path} of uid {folder.owner_uid}"
            yield fail(check, seen, f"sudo chown -R {caller_uid} {shlex.quote(folder.path)}")


def _check_lock(check: str, folder: Folder, owner_uid: int, caller_uid: int) -> Finding:
    """All users share it: other users' commands refuse a folder that one of them owns."""
    owned, fix = f"{folder.path} belongs to {user_name(owner_uid)}", made_anew(Path(folder.path))
    if owner_uid not in {ROOT_UID, caller_uid}:
        return fail(check, f"{owned}, and all users share it", fix)
    if not folder.is_writable:
        return fail(check, f"{owned} and cannot be written", fix)
    return ok(check, folder.path)


def check_duplicates(copies: Sequence[str], hub_cache: str) -> Finding:
    check = "folders.duplicates"
    if not copies:
        return ok(check, "the model is in no second cache")
    seen = f"the model is in {', '.join(copies)} too, and {hub_cache} is the cache in use"
    fix = f"keep one: set HF_HUB_CACHE to it, and remove the other (ls {shlex.quote(copies[0])})"
    return warn(check, seen, fix)


@dataclass(frozen=True, slots=True)
class KnownBad:
    part: str
    """`driver`, `kernel`, or a part with firmware as doctor names it."""
    version: str
    why: str
    fix: str
    source: str
    unless: str | None = None
    """A kernel option that avoids the fault."""

    def describe(self) -> str:
        return f"{self.why} ({self.source})"


@functools.cache
def known_bad() -> tuple[KnownBad, ...]:
    return tuple(
        KnownBad(**row) for row in yaml_text.load_file(Path(__file__).with_name("known_bad.yaml"))
    )


def failing(
    part: str,
    version: str,
    options: Container[str] = (),
    rows: tuple[KnownBad, ...] | None = None,
) -> KnownBad | None:
    """Return the row that a version falls under; `options` are the running kernel's."""
    known = known_bad() if rows is None else rows
    return next((row for row in known if _matches(row, part, version, options)), None)


def _matches(row: KnownBad, part: str, version: str, options: Container[str]) -> bool:
    rest = version.removeprefix(row.version)
    # 59 does not match 590, nor 7.0.0-101 match 7.0.0-1019.
    is_version = version == row.version or (rest != version and not rest[0].isalnum())
    return row.part == part and is_version and row.unless not in options


def check_kernel(kernel: str | None, options: Container[str]) -> Finding:
    check = "machine.kernel"
    if kernel is None:
        return not_seen(check, "`uname -r` did not answer")
    row = failing("kernel", kernel, options)
    if row is None:
        return ok(check, f"Linux {kernel}")
    return warn(check, f"Linux {kernel}: {row.describe()}", row.fix)


def check_firmware(
    versions: Mapping[str, str], rows: tuple[KnownBad, ...] | None = None
) -> Finding:
    check = "machine.firmware"
    if not versions:
        return not_seen(check, "no version of firmware can be read")
    seen = ", ".join(f"{part} {version}" for part, version in versions.items())
    for part, version in versions.items():
        row = failing(part, version, rows=rows)
        if row is not None:
            return warn(check, f"{seen}: {part} {version}: {row.describe()}", row.fix)
    return ok(check, seen)


def reach_findings(reached: Mapping[NeededHost, bool]) -> Iterator[Finding]:
    for target, is_reached in reached.items():
        check = f"network.{target.name}"
        place = f"{'the proxy ' if target.is_proxy else ''}{target.host}:{target.port}"
        if is_reached:
            yield ok(check, f"{place} answers")
        else:
            use, remedy = NEEDED_FOR[target.name]
            yield warn(check, f"{place} does not answer: no {use}", remedy)


def check_localhost(addresses: Sequence[str]) -> Finding:
    """Check the address of `localhost`: a server on 127.0.0.1 is not on ::1."""
    check = "network.localhost"
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


def check_open_ports(open_ports: frozenset[int] | None) -> Finding:
    check = "ports.open"
    if open_ports is None:
        return not_seen(check, "/proc/net/tcp cannot be read")
    named = ", ".join(
        f"{port} ({KNOWN_PORTS[port]})" for port in sorted(open_ports & KNOWN_PORTS.keys())
    )
    if not named:
        return ok(check, "none of Ray's and Ollama's ports is open to the network")
    return warn(
        check,
        f"open to the whole network: {named}",
        "bind them to 127.0.0.1 (Ollama: OLLAMA_HOST=127.0.0.1), or close them in the firewall",
    )
