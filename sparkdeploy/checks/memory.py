"""Memory beyond what a plan needs: swap that is used, a page cache that hides free memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import not_seen, ok, warn
from sparkdeploy.console import format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checks.finding import Finding

GIB = 2**30
SWAPPED_BYTES = GIB
DROP_CACHES = "sync && echo 3 | sudo tee /proc/sys/vm/drop_caches"


def check_swap(meminfo: Mapping[str, int]) -> Finding:
    """Say whether programs have been pushed out: the slow way into a freeze."""
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
    """Say whether CUDA will see the memory that the kernel would give back.

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
    return warn(
        check,
        f"{seen}: CUDA may count the cache as taken, and {format_gib(needed_bytes)} are needed",
        DROP_CACHES,
    )


def check_oom_kills(vmstat: str | None) -> Finding:
    """Say how often the kernel has killed a program for memory since the machine started."""
    check = "machine.oom_kills"
    counts = dict(line.split(maxsplit=1) for line in (vmstat or "").splitlines() if " " in line)
    if not counts.get("oom_kill", "").strip().isdecimal():
        return not_seen(check, "the kernel does not count programs it killed for memory")
    count = int(counts["oom_kill"])
    if count == 0:
        return ok(check, "the kernel has killed nothing for memory since the start")
    return warn(
        check,
        f"the kernel has killed {count} program{'s' if count > 1 else ''} for memory since the "
        "machine started",
        "sudo dmesg | grep -i 'killed process'",
    )
