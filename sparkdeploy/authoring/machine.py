"""The machine of an estimate: one of the table or the one at hand, and what records say of it."""

from __future__ import annotations

import statistics
import time
import timeit
from typing import TYPE_CHECKING

from sparkdeploy.estimate.hardware import (
    Hardware,
    MeasuredSpeed,
    hardware_named,
    hardware_seen,
)
from sparkdeploy.node import facts as node_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkdeploy.settings import Settings

HERE = "here"
COPIED_BYTES = 128 * 2**20
COPIES = 3


def copy_bandwidth(clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure how many bytes a second one core moves when it copies memory, read and written."""
    block, target = bytearray(COPIED_BYTES), memoryview(bytearray(COPIED_BYTES))

    def copy() -> None:
        target[:] = block

    best_s = min(timeit.repeat(copy, number=1, repeat=COPIES, timer=clock))
    return 2 * COPIED_BYTES / best_s


def machine_wanted(wanted: str, table: Mapping[str, Hardware]) -> Hardware:
    """Return a machine of the table, or the one at hand; UsageError for a name that is neither."""
    if wanted != HERE:
        return hardware_named(wanted, table)
    return hardware_seen(
        next(iter(node_facts.read_gpus().gpus), None),
        table,
        memory_bytes=node_facts.read_meminfo().get("MemTotal", 0),
        copy_bytes_s=copy_bandwidth(),
    )


def measured_on(machine: Hardware, settings: Settings) -> list[MeasuredSpeed]:
    """Return what kept records say of such a machine: whole suites, one stream, end to end."""
    folder = settings.state_dir / "bench"
    if machine.gpu is None or not folder.is_dir():
        return []
    # It imports pydantic's models of a record, which no other estimate needs.
    from sparkdeploy.bench.files import Shelf  # noqa: PLC0415

    found: list[MeasuredSpeed] = []
    for item in Shelf(folder).runs()[0]:
        origin = item.run.origin
        seen = origin.machine.gpu if origin.machine is not None else None
        if origin.recipe is None or machine.gpu not in (seen or ""):
            continue
        speeds = [
            it.end_to_end_tok_s
            for suite in item.run.suites
            if suite.is_complete
            for cell in suite.cells
            if cell.concurrency == 1 and cell.context_tokens is None
            for it in cell.rounds
            if it.end_to_end_tok_s
        ]
        if speeds:
            mean = statistics.fmean(speeds)
            found.append(MeasuredSpeed(origin.recipe.name, mean, item.run.run_id))
    return found
