"""The GPU: is it there, is it a Spark's, does its driver hang, who else computes on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import fail, not_seen, ok, warn
from sparkdeploy.console import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.node.gpu import GpuFact, GpuProcess

SPARK_CAPABILITY = "12.1"
OLDEST_CAPABILITY = (8, 0)
"""INT4 Marlin's kernels need Ampere."""
OLDEST_DRIVER = 580
"""CUDA 13 needs the driver branch 580 (NVIDIA's CUDA compatibility table)."""
BUSY_PERCENT = 50
STUCK_SHARE = 0.4
"""A busy GB10 that was stuck ran at 702 of about 3000 MHz (eugr/spark-vllm-docker#334)."""


@dataclass(frozen=True, slots=True)
class KnownBadDriver:
    """A driver branch that is known to fail on a Spark."""

    branch: int
    why: str


KNOWN_BAD_DRIVERS = (
    KnownBadDriver(590, "CUDA graphs deadlock with it on a GB10 (eugr/spark-vllm-docker, README)"),
)


def check_gpu(
    gpu: GpuFact | None, failure: str | None, *, node: str, engine: str, recipe: str
) -> Finding:
    """Say whether there is a GPU at all; `failure` is nvidia-smi's own word when there is none."""
    if gpu is not None:
        return ok("machine.gpu", gpu.name)
    if failure is None or "not installed" in failure:
        return fail(
            "machine.gpu",
            f"GPU: none was found on {node}, and engine {engine} needs one",
            f"run this on the Spark, or try the recipe in miniature: sparkdeploy rehearse {recipe}",
        )
    return fail(
        "machine.gpu",
        f"GPU: none was found on {node}, nvidia-smi says: {failure}",
        "sudo reboot, after an update of the driver; else `sudo dmesg | grep -i nvrm`",
    )


def check_capability(gpu: GpuFact) -> Finding:
    """Say whether the kernels that recipes rely on exist for this GPU."""
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


def check_driver(gpu: GpuFact) -> Finding:
    """Say whether the driver is old, or of a branch that is known to hang."""
    check = "machine.driver"
    if gpu.driver_version is None:
        return not_seen(check, "nvidia-smi does not name the driver's version")
    seen = f"driver {gpu.driver_version}"
    branch = int(gpu.driver_version.partition(".")[0])
    for bad in KNOWN_BAD_DRIVERS:
        if branch == bad.branch:
            return warn(check, f"{seen}: {bad.why}", "sudo apt-get install nvidia-driver-580-open")
    if branch < OLDEST_DRIVER:
        return fail(
            check,
            f"{seen} is too old for CUDA 13, which needs {OLDEST_DRIVER}",
            "sudo apt-get install nvidia-driver-580-open && sudo reboot",
        )
    return ok(check, seen)


def check_clocks(gpu: GpuFact) -> Finding:
    """Say whether a busy GPU runs far under its clock; an idle one is slow by right."""
    check = "machine.clocks"
    clock, highest = gpu.sm_clock_mhz, gpu.max_sm_clock_mhz
    if clock is None or not highest or gpu.utilization_percent is None:
        return not_seen(check, "nvidia-smi does not name clocks and utilisation")
    seen = f"SM clock {clock} of {highest} MHz at {gpu.utilization_percent} % load"
    if gpu.utilization_percent >= BUSY_PERCENT and clock < STUCK_SHARE * highest:
        return warn(
            check,
            f"{seen}: stuck low",
            "sudo nvidia-smi -rgc; if it stays, switch the machine off and unplug it for a minute",
        )
    return ok(check, seen)


def check_other_users(processes: tuple[GpuProcess, ...], own_containers: frozenset[str]) -> Finding:
    """Name the programs, not in a container of ours, that compute on the GPU."""
    check = "gpu.other_users"
    foreign = [item for item in processes if item.container_id not in own_containers]
    if not foreign:
        return ok(check, "nobody else computes on the GPU")
    return warn(
        check,
        f"also on the GPU: {', '.join(map(_describe, foreign))}; memory is shared with them",
        f"stop them, for example: kill {foreign[0].pid}",
    )


def gpu_findings(gpu: GpuFact) -> Iterator[Finding]:
    """Yield everything that can be said of a GPU that is there."""
    yield check_capability(gpu)
    yield check_driver(gpu)
    yield check_clocks(gpu)


def _describe(process: GpuProcess) -> str:
    name = process.name.rpartition("/")[2] or "a process"
    memory = f", {format_gib(process.memory_bytes)}" if process.memory_bytes is not None else ""
    place = f" in container {process.container_id[:12]}" if process.container_id else ""
    return f"{name} (pid {process.pid}{place}{memory})"
