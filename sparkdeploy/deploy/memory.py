"""Memory for a start: what was planned to be taken against what is free then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.node.facts import parse_meminfo, read_or_none
from sparkdeploy.plan.problems import promised_bytes, shortage
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.estimate.memory_claim import MemoryClaim
    from sparkdeploy.node.node import Node

RETURN_TIMEOUT_S = 20.0
"""A driver may give memory back some seconds after the process that used it has ended."""
POLL_S = 0.5
UNKNOWN_BYTES = 1 << 62
DROP_CACHES = "/proc/sys/vm/drop_caches"
DROP_COMMAND = f"sync && echo 1 | sudo tee {DROP_CACHES}"


def require_memory(
    node: Node, deployment: str, claim: MemoryClaim | None, *, drop_page_cache: bool
) -> None:
    """Compare a claim with a node's memory that is free now, when nothing of the deployment runs.

    What the other deployments were planned to take counts as taken. Its containers were listed
    under the lock, so that no other start is missing from them. Waits for memory that a stopped
    container still gives back. Where CUDA counts only what is really free, a page cache in the way
    is dropped with consent, else there is a warning. Raises NodeError when the memory is not there.
    """
    if claim is None:
        return
    prefix = "" if node.is_here else f"{node.name}: "
    others_bytes = promised_bytes(filter(lambda it: it.is_own, node.listing), deployment)
    deadline_s = time.monotonic() + RETURN_TIMEOUT_S
    while True:
        meminfo = _meminfo(node)
        unpromised = meminfo.get("MemTotal", UNKNOWN_BYTES) - others_bytes
        available = min(meminfo.get("MemAvailable", unpromised), unpromised)
        problem = next(shortage(claim, available), None)
        if problem is None:
            break
        # What is promised to others does not come back: no wait can help.
        if time.monotonic() >= deadline_s or unpromised < claim.total_bytes:
            raise NodeError(prefix + problem.seen, hint=problem.fix)
        time.sleep(POLL_S)
    if not claim.page_cache_counts:
        _clear_page_cache(claim.needed_bytes, node, prefix, drop=drop_page_cache)


def _meminfo(node: Node) -> Mapping[str, int]:
    return parse_meminfo(read_or_none(node, "/proc/meminfo") or "")


def _clear_page_cache(needed_bytes: int, node: Node, prefix: str, *, drop: bool) -> None:
    missing_bytes = needed_bytes - _meminfo(node).get("MemFree", needed_bytes)
    if missing_bytes <= 0:
        return
    warning = (
        f"{prefix}the page cache holds {format_gib(missing_bytes)} that CUDA will not count as free"
    )
    if not drop and not console.confirm(f"{warning}. Drop it?"):
        console.warn(f"{warning}; if the start fails: {DROP_COMMAND}")
        return
    done = node.script(f"echo 1 > {DROP_CACHES}")
    if done.exit_code != 0:
        why = done.stderr.strip().rpartition(": ")[2] or "no reason was given"
        console.warn(f"{warning}, and it cannot be dropped ({why}): {DROP_COMMAND}")
