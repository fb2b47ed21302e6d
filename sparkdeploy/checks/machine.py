"""One machine: its GPU and driver, its memory, its kernel and firmware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import fail, not_seen, ok, warn
from sparkdeploy.checks.known import failing
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.checks.known import KnownBad
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
