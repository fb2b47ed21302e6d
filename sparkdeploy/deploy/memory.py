"""Memory for a start: what was planned to be taken against what is free then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.console import console, format_gib
from sparkdeploy.errors import NodeError
from sparkdeploy.node.facts import parse_meminfo, read_or_none
from sparkdeploy.plan.problems import promised_bytes, shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkdeploy.estimate.memory_claim import MemoryClaim
    from sparkdeploy.node.node import Node

RETURN_TIMEOUT_S = 20.0
"""A driver may give memory back some seconds after the process that used it has ended."""
POLL_S = 0.5
UNKNOWN_BYTES = 1 << 62
DROP_CACHES = "/proc/sys/vm/drop_caches"
DROP_COMMAND = f"sync && echo 1 | sudo tee {DROP_CACHES}"


@dataclass(frozen=True, slots=True)
class Memory:
    """What reading a node's memory needs; other clocks are for tests."""

    meminfo: Callable[[], Mapping[str, int]]
    drop_page_cache: Callable[[], None]
    """Raises NodeError when this user may not."""
    prefix: str = ""
    """Before messages: the node's name, but for the one this command runs on."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def require_memory_on(
    node: Node, deployment: str, claim: MemoryClaim | None, *, drop_page_cache: bool
) -> None:
    """Require memory beside all other deployments of a node; raises what `require_memory` does.

    Its containers were listed under the lock, so that no other start is missing from them.

    A page cache in the way is dropped with `drop_page_cache`; otherwise a terminal is asked.
    """

    def meminfo() -> Mapping[str, int]:
        return parse_meminfo(read_or_none(node, "/proc/meminfo") or "")

    def drop() -> None:
        done = node.script(f"echo 1 > {DROP_CACHES}")
        if done.exit_code != 0:
            raise NodeError(done.stderr.strip().rpartition(": ")[2] or "no reason was given")

    memory = Memory(meminfo, drop, "" if node.is_here else f"{node.name}: ")
    others_bytes = promised_bytes(filter(lambda it: it.is_own, node.listing), deployment)
    require_memory(claim, memory, others_bytes=others_bytes, drop_page_cache=drop_page_cache)


def require_memory(
    claim: MemoryClaim | None,
    memory: Memory,
    *,
    others_bytes: int = 0,
    drop_page_cache: bool = False,
) -> None:
    """Compare a claim with the memory that is free now, when nothing of the deployment runs.

    `others_bytes` is what the other deployments were planned to take. Waits for memory that a
    stopped container still gives back. Where CUDA counts only what is really free, a page cache in
    the way is dropped with consent, else there is a warning. Raises NodeError when the memory is
    not there.
    """
    if claim is None:
        return
    deadline_s = memory.clock() + RETURN_TIMEOUT_S
    while True:
        meminfo = memory.meminfo()
        unpromised = meminfo.get("MemTotal", UNKNOWN_BYTES) - others_bytes
        available = min(meminfo.get("MemAvailable", unpromised), unpromised)
        problem = next(shortage(claim, available), None)
        if problem is None:
            break
        # What is promised to others does not come back: no wait can help.
        if memory.clock() >= deadline_s or unpromised < claim.total_bytes:
            raise NodeError(memory.prefix + problem.seen, hint=problem.fix)
        memory.sleep(POLL_S)
    if not claim.page_cache_counts:
        _clear_page_cache(claim.needed_bytes, memory, drop=drop_page_cache)


def _clear_page_cache(needed_bytes: int, memory: Memory, *, drop: bool) -> None:
    missing_bytes = needed_bytes - memory.meminfo().get("MemFree", needed_bytes)
    if missing_bytes <= 0:
        return
    warning = (
        f"{memory.prefix}the page cache holds {format_gib(missing_bytes)} that CUDA will not count "
        "as free"
    )
    if not drop and not console.confirm(f"{warning}. Drop it?"):
        console.warn(f"{warning}; if the start fails: {DROP_COMMAND}")
        return
    try:
        memory.drop_page_cache()
    except NodeError as error:
        console.warn(f"{warning}, and it cannot be dropped ({error.message}): {DROP_COMMAND}")
