"""What `nvidia-smi` says of a machine's GPUs, their load and who computes on them."""

from __future__ import annotations

import re
from dataclasses import dataclass

MIB = 2**20
VERSION = re.compile(r"[0-9]+(\.[0-9]+)+")


def _query(fields: str) -> tuple[str, ...]:
    return ("nvidia-smi", f"--query-{fields}", "--format=csv,noheader,nounits")


GPU_QUERY = _query(
    "gpu=name,compute_cap,memory.total,driver_version,clocks.sm,clocks.max.sm,utilization.gpu"
)
PROCESS_QUERY = _query("compute-apps=pid,process_name,used_memory")
LOAD_QUERY = _query("gpu=clocks.sm,temperature.gpu,power.draw")


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


def parse_gpus(output: str) -> tuple[GpuFact, ...]:
    """Read the output of GPU_QUERY; lines of another shape are left out."""
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines()]
    # A driver that answers with name and version alone has a GPU all the same.
    short = [[row[0], "", "", row[1], "", "", ""] for row in rows if _is_name_and_version(row)]
    return tuple(_gpu(row) for row in (*short, *rows) if len(row) == 7)


def _is_name_and_version(row: list[str]) -> bool:
    return len(row) == 2 and bool(row[0]) and VERSION.fullmatch(row[1]) is not None


def parse_gpu_processes(output: str) -> tuple[GpuProcess, ...]:
    """Read the output of PROCESS_QUERY; a name may hold commas."""
    found = []
    for line in output.splitlines():
        pid, _, rest = line.partition(",")
        name, _, memory = rest.rpartition(",")
        if pid.strip().isdecimal():
            found.append(GpuProcess(int(pid), name.strip(), _bytes(memory.strip())))
    return tuple(found)


def parse_gpu_load(output: str) -> GpuLoad | None:
    """Read the first line of LOAD_QUERY's output; None for any other shape."""
    fields = [field.strip() for field in output.strip().partition("\n")[0].split(",")]
    return GpuLoad(*map(_measured, fields)) if len(fields) == 3 else None


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


def _measured(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
