"""Memory for a start: what the plan says is needed against what is free at that moment."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.console import console, format_gib
from sparkdeploy.errors import NodeError
from sparkdeploy.node.facts import read_meminfo
from sparkdeploy.plan.capacity import memory_problems
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.problems import promised_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkdeploy.plan.steps import Plan, Problem

RETURN_TIMEOUT_S = 20.0
"""A driver may give memory back some seconds after the process that held it has ended."""
POLL_S = 0.5
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
DROP_COMMAND = "sync && echo 1 | sudo tee /proc/sys/vm/drop_caches"


class PageCache(Enum):
    """What may be done with the machine's page cache."""

    ASK = "ask on a terminal, and leave it alone elsewhere"
    DROP = "drop it when the model needs the room"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a look at memory needs of the machine; other ones are for tests and other nodes."""

    meminfo: Callable[[], Mapping[str, int]] = read_meminfo
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    drop_caches: Path = DROP_CACHES


def make_room(plan: Plan, page_cache: PageCache, machine: Machine | None = None) -> None:
    """Hold the plan's memory against what is free now, when nothing of the deployment runs.

    Waits for memory that a stopped container still gives back. On a machine whose GPU shares it,
    CUDA counts only what is really free: a page cache in the way is dropped with consent, else it
    is told. Raises NodeError when the memory is not there.
    """
    machine = machine or Machine()
    deadline_s = machine.clock() + RETURN_TIMEOUT_S
    while problem := _problem(plan, machine.meminfo()):
        if machine.clock() >= deadline_s:
            raise NodeError(problem.message, hint=problem.fix)
        machine.sleep(POLL_S)
    _clear_page_cache(plan, page_cache, machine)


def _problem(plan: Plan, meminfo: Mapping[str, int]) -> Problem | None:
    node = replace(plan.observed.node, memory_available_bytes=meminfo.get("MemAvailable"))
    model = plan.observed.model
    problems = memory_problems(
        plan.resolved.recipe,
        plan.resolved.engine,
        node,
        model_bytes=model.size_bytes if isinstance(model, ModelFact) else None,
        freed_bytes=0,
        promised_bytes=promised_bytes(plan.observed, plan.deployment),
    )
    return next(problems, None)


def _clear_page_cache(plan: Plan, page_cache: PageCache, machine: Machine) -> None:
    missing_bytes = _held_by_page_cache(plan, machine.meminfo())
    if missing_bytes <= 0:
        return
    told = f"the page cache holds {format_gib(missing_bytes)} that CUDA will not count as free"
    if page_cache is PageCache.ASK and not console.confirm(f"{told}. Drop it?"):
        console.warn(f"{told}; if the start fails: {DROP_COMMAND}")
        return
    try:
        machine.drop_caches.write_text("1\n")
    except OSError as error:
        console.warn(f"{told}, and it cannot be dropped ({error.strerror}): {DROP_COMMAND}")


def _held_by_page_cache(plan: Plan, meminfo: Mapping[str, int]) -> int:
    """Return the bytes by which free memory falls short of the plan on a shared-memory GPU."""
    gpu, needed = plan.observed.node.gpu, plan.needs.memory_bytes
    has_own_memory = gpu is None or gpu.memory_bytes is not None
    if plan.resolved.engine.runs_on == "cpu" or has_own_memory or needed is None:
        return 0
    return max(needed - meminfo.get("MemFree", needed), 0)
