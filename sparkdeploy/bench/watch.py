"""The serving side while a suite runs: the server's own counters, its KV cache and its machine."""

import contextlib
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Self

from sparkdeploy.bench.record import MachineWatch, Range, Run, ServerDelta
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.node.facts import (
    LOAD_QUERY,
    GpuLoad,
    Machine,
    output_or_none,
    parse_gpu_load,
    parse_meminfo,
    read_or_none,
)
from sparkdeploy.server.metrics import Metrics, Speculation

EVERY_S = 1.0
QUERY_TIMEOUT_S = 5.0
_COUNTED = {
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generated_tokens",
    "preemptions": "preemptions",
    "prefix_queries": "prefix_queries",
    "prefix_hits": "prefix_hits",
}
_KV_USAGE = re.compile(
    r"^vllm:(?:gpu|kv)_cache_usage_perc(?:\{.*?\})? (\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?:\s|$)",
    re.MULTILINE,
)


def difference(before: Metrics, after: Metrics) -> ServerDelta:
    drafted = after.drafted
    if drafted is not None and before.drafted is not None:
        drafted = drafted.since(before.drafted)
    counted: dict[str, Any] = {
        name: int(now - (getattr(before, field) or 0))
        for name, field in _COUNTED.items()
        if (now := getattr(after, field)) is not None
    }
    return ServerDelta(
        **counted,
        drafted=drafted,
        kv_usage_before=before.kv_usage,
        kv_usage_after=after.kv_usage,
    )


def together(
    deltas: Iterable[ServerDelta], readings: "Iterable[Reading]" = ()
) -> ServerDelta | None:
    """Sum what the server counted; of its KV cache return the two ends and the highest reading."""
    found = tuple(deltas)
    if not found:
        return None
    usages = (item.kv_usage for item in readings if item.kv_usage is not None)
    return ServerDelta(
        **{name: _sum(getattr(item, name) for item in found) for name in _COUNTED},
        drafted=all_drafted(item.drafted for item in found),
        kv_usage_before=found[0].kv_usage_before,
        kv_usage_after=found[-1].kv_usage_after,
        kv_usage_peak=max(usages, default=None),
    )


def all_drafted(counted: Iterable[Speculation | None]) -> Speculation | None:
    """Sum what was drafted; None where the server counted no drafts."""
    known = [item for item in counted if item is not None]
    return reduce(add, known) if known else None


def drafted_in(run: Run) -> Speculation | None:
    """Return what was drafted while a run was measured."""
    cells = (cell for suite in run.suites for cell in suite.cells)
    return all_drafted(cell.server.drafted for cell in cells if cell.server)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def kv_usage(exposition: str) -> float | None:
    """Read the highest of all engines, 0 to 1; parsing all would take milliseconds of the clock."""
    return max(map(float, _KV_USAGE.findall(exposition)), default=None)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look. None where nothing was to be seen."""

    at_s: float
    gpu: GpuLoad | None = None
    available_bytes: int | None = None
    kv_usage: float | None = None


class BenchWatch:
    """A thread that looks now and then; `machine` is None where the server runs elsewhere."""

    def __init__(
        self,
        machine: Machine | None,
        exposition: Callable[[], str] | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._machine = machine
        self._exposition = exposition
        self._clock = clock
        self._readings: list[Reading] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_again, name="bench-watch", daemon=True)

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        gpu, available, usage = None, None, None
        if self._machine is not None:
            output = output_or_none(self._machine, LOAD_QUERY, timeout_s=QUERY_TIMEOUT_S)
            gpu = parse_gpu_load(output) if output else None
            meminfo = read_or_none(self._machine, "/proc/meminfo") or ""
            available = parse_meminfo(meminfo).get("MemAvailable")
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


def _range(values: Iterable[float | None]) -> Range | None:
    known = [value for value in values if value is not None]
    return Range(min(known), statistics.median(known), max(known)) if known else None
