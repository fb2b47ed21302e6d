"""The serving machine and its KV cache while a suite runs, looked at once a second."""

from __future__ import annotations

import contextlib
import re
import statistics
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sparkdeploy.bench.record import MachineWatch, Range
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.node.gpu_load import LOAD_QUERY, GpuLoad, parse_gpu_load
from sparkdeploy.node.machine import output_or_none, read_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from sparkdeploy.node.machine import Machine

EVERY_S = 1.0
QUERY_TIMEOUT_S = 5.0
_KV_USAGE = re.compile(r"^vllm:(?:gpu|kv)_cache_usage_perc(?:\{.*?\})? (\S+)", re.MULTILINE)
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look. None where nothing was to be seen."""

    at_s: float
    gpu: GpuLoad | None = None
    available_bytes: int | None = None
    kv_usage: float | None = None


def read_machine(machine: Machine) -> tuple[GpuLoad | None, int | None]:
    """Return the GPU's load and the memory that is available."""
    output = output_or_none(machine, LOAD_QUERY, timeout_s=QUERY_TIMEOUT_S)
    memory = _AVAILABLE.search(read_or_none(machine, "/proc/meminfo") or "")
    return (
        parse_gpu_load(output) if output else None,
        int(memory[1]) * 1024 if memory else None,
    )


def kv_usage(exposition: str) -> float | None:
    """Return the highest KV cache usage of all engines, 0 to 1.

    Reads no more than that: a whole exposition would take milliseconds from the client's clock.
    """
    found = [float(match) for match in _KV_USAGE.findall(exposition)]
    return max(found, default=None)


class Watch:
    """A thread that looks now and then; a context manager.

    `machine` is None where the server runs elsewhere, `exposition` returns /metrics or raises.
    """

    def __init__(
        self,
        machine: Machine | None,
        exposition: Callable[[], str] | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare; nothing is looked at yet."""
        self._machine = machine
        self._exposition = exposition
        self._clock = clock
        self._readings: list[Reading] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_again, name="bench-watch", daemon=True)

    def __enter__(self) -> Self:
        """Look once, and go on in the background."""
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        """Take one reading."""
        gpu, available = read_machine(self._machine) if self._machine else (None, None)
        usage = None
        if self._exposition is not None:
            with contextlib.suppress(SparkdeployError):
                usage = kv_usage(self._exposition())
        self._readings.append(Reading(self._clock(), gpu, available, usage))

    def between(self, start_s: float, end_s: float) -> tuple[Reading, ...]:
        """Return the readings of a span, or the last one before it when it was too short."""
        known = tuple(self._readings)
        inside = tuple(item for item in known if start_s <= item.at_s <= end_s)
        return inside or tuple(item for item in known if item.at_s < start_s)[-1:]

    def _look_again(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.look()


def machine_watch(readings: Sequence[Reading]) -> MachineWatch | None:
    """Return the ranges over these readings, or None where the machine told nothing."""
    loads = [item.gpu for item in readings if item.gpu is not None]
    memory = [item.available_bytes for item in readings if item.available_bytes is not None]
    if not loads and not memory:
        return None
    return MachineWatch(
        readings=len(readings),
        sm_clock_mhz=_range(load.sm_clock_mhz for load in loads),
        temperature_c=_range(load.temperature_c for load in loads),
        power_w=_range(load.power_w for load in loads),
        memory_floor_bytes=min(memory, default=None),
    )


def kv_peak(readings: Iterable[Reading]) -> float | None:
    """Return the highest KV usage seen."""
    return max((item.kv_usage for item in readings if item.kv_usage is not None), default=None)


def _range(values: Iterable[float | None]) -> Range | None:
    known = [value for value in values if value is not None]
    return Range(min(known), statistics.median(known), max(known)) if known else None
