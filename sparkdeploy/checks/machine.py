"""One machine: its GPU and driver, its memory, its kernel and firmware, and who else is there."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from sparkdeploy.checks.known import KnownBad, failing, known, model_servers
from sparkdeploy.checks.report import Finding, fail, not_seen, ok, warn
from sparkdeploy.units import format_bytes, format_gib

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.node.container import NeighbourFact
    from sparkdeploy.node.facts import GpuFact, GpuProcess
    from sparkdeploy.node.symptoms import GpuSample, SymptomFact

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
STRAY_CMA_BYTES = 2**26
"""The two are counted at different times; KHO's part was 900 MiB and more."""
JUDGED_FREE_BYTES = 8 * 2**30
"""With less free, few large blocks are normal."""
LARGE_SHARE = 0.05
"""Of free memory in the two largest sizes of block: 0.4 % where starts failed, 40 % after a reboot
of the same machines (FujitsuPolycom/sparkring#173)."""
SWAP_BYTES_S = 2**20
STALLED_PERCENT = 5.0
IDLE_POWER_W = 30.0
"""A GB10 that serves takes 45 W and more, one that spins or hangs under 30 W at 95 % utilisation
(eugr/spark-vllm-docker#260)."""
COOL_DOWN = "give it air and its own power supply; nvidia-smi -q -d PERFORMANCE shows more"
WATCH_TOKENS = "sparkdeploy status --watch shows tokens/s; if there are none: sparkdeploy diagnose"
XID = re.compile(r"NVRM: Xid \([^)]*\): ([0-9]+)", re.ASCII)
NO_MEMORY = "NV_ERR_NO_MEMORY"
_COMPLAINT = re.compile(r"\bNV_ERR_|\bfail(?:ed|ure)\b|\berror\b", re.IGNORECASE)


def check_gpu(
    gpu: GpuFact | None, failure: str | None, *, node: str, engine: str, rehearsed: str | None
) -> Finding:
    """Check that there is a GPU; `rehearsed` is the recipe, where a rehearsal would test it."""
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


def check_other_users(processes: tuple[GpuProcess, ...], own_containers: frozenset[str]) -> Finding:
    check = "gpu.other_users"
    foreign = [item for item in processes if item.container_id not in own_containers]
    if not foreign:
        return ok(check, "no other program computes on the GPU")
    seen = f"also on the GPU: {', '.join(map(_user, foreign))}; memory is shared with them"
    return warn(check, seen, _stop_of(foreign[0]))


def _stop_of(process: GpuProcess) -> str:
    """Return how a program's owner ends all of it: nobody kills one rank of several."""
    name = process.name.rpartition("/")[2]
    servers = [it for it in model_servers() if re.search(it.program, name)]
    if servers:
        return servers[0].stop
    rank = next((it["title"] for it in known()["ranks"] if re.search(it["name"], name)), None)
    whole = f"it is part of {rank}: end that as a whole, where it was started, also on other nodes"
    if process.container_id:
        container = process.container_id[:12]
        look = f"docker ps --filter id={container}"
        return f"{whole} ({look})" if rank else f"{look}, then docker stop {container}"
    look = f"ps -o user,lstart,args -p {process.pid}"
    return f"{whole} ({look})" if rank else f"{look} says what it is; its owner can stop it"


def _user(process: GpuProcess) -> str:
    name = process.name.rpartition("/")[2] or "a process"
    memory = f", {format_gib(process.memory_bytes)}" if process.memory_bytes is not None else ""
    place = f" in container {process.container_id[:12]}" if process.container_id else ""
    return f"{name} (pid {process.pid}{place}{memory})"


def check_swap(meminfo: Mapping[str, int]) -> Finding:
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
    """Check that CUDA sees the memory that the kernel would give back."""
    # On unified memory it counts the page cache as taken, and vLLM refuses to start.
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


def machine_symptoms(seen: SymptomFact) -> Iterator[Finding]:
    yield check_kernel(seen.kernel, seen.kernel_options)
    yield check_firmware(seen.firmware)
    yield check_fragmentation(seen.free_blocks, seen.page_bytes)
    yield check_swapping(seen)


def gpu_symptoms(seen: SymptomFact) -> Iterator[Finding]:
    yield check_strain([glance.gpu for glance in seen.samples])
    yield check_xids(seen.driver_log)
    yield check_driver_log(seen.driver_log)


def check_kho(meminfo: Mapping[str, int]) -> Finding:
    """Check that KHO, which hands memory over to a next kernel, keeps none from being pinned.

    Its blocks count as free CMA memory and belong to no CMA area (NVIDIA/NV-Kernels#590).
    """
    check = "machine.kho"
    if not meminfo:
        return not_seen(check, "/proc/meminfo cannot be read")
    total_bytes, free_bytes = meminfo.get("CmaTotal", 0), meminfo.get("CmaFree", 0)
    if free_bytes - total_bytes <= STRAY_CMA_BYTES:
        return ok(check, "no memory is kept for a next kernel")
    return warn(
        check,
        f"the kernel keeps memory for a next one (KHO): CmaFree {format_gib(free_bytes)}, CmaTotal "
        f"{format_gib(total_bytes)}; RDMA cannot register it and fails with ENOMEM",
        "start it with kho=off (GRUB_CMDLINE_LINUX in /etc/default/grub, sudo update-grub, reboot)",
    )


def check_fragmentation(free_blocks: Sequence[int], page_bytes: int | None) -> Finding:
    check = "machine.fragmentation"
    if not free_blocks or not page_bytes:
        return not_seen(check, "/proc/buddyinfo cannot be read")
    sizes = [count * page_bytes << order for order, count in enumerate(free_blocks)]
    free_bytes, large_bytes = sum(sizes), sum(sizes[-2:])
    block_mib = (page_bytes << max(len(sizes) - 2, 0)) / 2**20
    if free_bytes < JUDGED_FREE_BYTES:
        return not_seen(check, f"{format_gib(free_bytes)} are free, too few to judge")
    seen = f"{format_gib(large_bytes)} of {format_gib(free_bytes)} free are in blocks of "
    seen += f"{block_mib:g} MiB"
    if large_bytes >= LARGE_SHARE * free_bytes:
        return ok(check, f"{seen} and more")
    return warn(
        check,
        f"{seen} and more: memory is in pieces, starts crawl or end with {NO_MEMORY}",
        f"{DROP_CACHES}; echo 1 | sudo tee /proc/sys/vm/compact_memory; if it stays: sudo reboot",
    )


def check_swapping(seen: SymptomFact) -> Finding:
    """Check that memory is not swapped right now, and that no program waits for it."""
    check = "machine.swapping"
    rates = _swap_rates(seen)
    stalled = seen.stalled_percent
    if rates is None and stalled is None:
        return not_seen(check, "the kernel reports neither swapping nor waiting for memory")
    seen_rates = []
    if rates is not None:
        from_swap, to_swap = (f"{format_bytes(int(rate))}/s" for rate in rates)
        seen_rates.append(f"{from_swap} from swap, {to_swap} to it")
    if stalled is not None:
        seen_rates.append(f"all programs waited for memory {stalled:g} % of the last 10 s")
    is_thrashing = rates is not None and min(rates) > SWAP_BYTES_S
    if not is_thrashing and (stalled or 0.0) < STALLED_PERCENT:
        return ok(check, ", ".join(seen_rates))
    return warn(
        check,
        f"{', '.join(seen_rates)}: the machine is about to freeze",
        "stop what is large now (`sparkdeploy down NAME`, or `ps aux --sort=-rss | head`)",
    )


def _swap_rates(seen: SymptomFact) -> tuple[float, float] | None:
    """Return bytes a second from swap and to it, between the two readings."""
    if len(seen.samples) != 2 or not seen.page_bytes:
        return None
    first, last = seen.samples
    if last.at_s <= first.at_s:
        return None
    a_page_s = seen.page_bytes / (last.at_s - first.at_s)
    read = _grown(first.swapped_in_pages, last.swapped_in_pages)
    written = _grown(first.swapped_out_pages, last.swapped_out_pages)
    return None if read is None or written is None else (read * a_page_s, written * a_page_s)


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(after - before, 0)


def check_strain(strains: Sequence[GpuSample | None]) -> Finding:
    """Check that a GPU that reports load works, by two readings: one alone may be a pause."""
    check = "gpu.strain"
    read = [item for item in strains if item is not None and item.utilization_percent is not None]
    if len(read) < 2:
        return not_seen(check, "nvidia-smi did not report the GPU's load twice")
    last = read[-1]
    power = "" if last.power_w is None else f", {last.power_w:g} W"
    clock = "" if last.sm_clock_mhz is None else f" at {last.sm_clock_mhz:g} MHz"
    seen = f"{last.utilization_percent:g} % busy{clock}{power}"
    if any((item.utilization_percent or 0.0) < BUSY_PERCENT for item in read):
        return ok(check, seen)
    bits = read[0].slowdown_bits & last.slowdown_bits
    slowed = [word for bit, word in known()["slowdowns"].items() if bits & bit]
    if slowed:
        return warn(check, f"{seen}, slowed down: {', '.join(slowed)}", COOL_DOWN)
    clocks = [(item.sm_clock_mhz, item.max_sm_clock_mhz) for item in read]
    if all(now is not None and most and now < STUCK_SHARE * most for now, most in clocks):
        return warn(check, f"{seen}, of {last.max_sm_clock_mhz:g} MHz: stuck low", UNSTICK)
    powers = [item.power_w for item in read if "GB10" in item.name]
    if len(powers) == len(read) and all(it is not None and it < IDLE_POWER_W for it in powers):
        return warn(
            check, f"{seen}: a GB10 that works takes more, an engine may hang", WATCH_TOKENS
        )
    return ok(check, seen)


def check_xids(log: Sequence[str] | None) -> Finding:
    check = "gpu.xids"
    if log is None:
        return not_seen(check, "this user may not read the kernel's log: sudo dmesg | grep Xid")
    counts = Counter(int(match[1]) for line in log for match in XID.finditer(line))
    if not counts:
        return ok(check, "the driver reported no error of the GPU since the start")
    errors = ", ".join(_xid(number, count) for number, count in counts.most_common())
    is_mild = counts.keys() <= set(known()["xids_of_programs"])
    fix = "sparkdeploy diagnose: the engine made it" if is_mild else "sudo reboot"
    if not counts.keys().isdisjoint(known()["xids_of_flavour"]):
        fix += "; is the driver the open one? `modinfo -F license nvidia` says Dual MIT/GPL then, "
        fix += f"else: sudo apt-get install nvidia-driver-{OLDEST_DRIVER}-open"
    return warn(check, f"since the start: {errors}", fix)


def _xid(number: int, count: int) -> str:
    meanings = known()["xids"]
    meaning = f" ({meanings[number]})" if number in meanings else ""
    return f"Xid {number}{meaning}" + (f" {count} times" if count > 1 else "")


def check_driver_log(log: Sequence[str] | None) -> Finding:
    """Report the driver's errors beside Xids: failed allocations first."""
    check = "gpu.driver_log"
    if log is None:
        return not_seen(check, "this user may not read the kernel's log: sudo dmesg | grep NVRM")
    for row in known()["driver_lines"]:
        if any(row["says"] in line for line in log):
            return warn(check, row["seen"], row["fix"])
    complaints = [line for line in log if _COMPLAINT.search(line) and not XID.search(line)]
    starved = sum(NO_MEMORY in line for line in complaints)
    if starved:
        return warn(
            check,
            f"{starved} allocations of the driver failed since the start ({NO_MEMORY}): a Spark "
            "froze soon after",
            "leave more free (serve.gpu_memory_utilization, limits); then: sudo reboot",
        )
    if complaints:
        last = complaints[-1].partition("NVRM:")[2].strip()
        seen = f"{len(complaints)} errors since the start, the last: {last[:160]}"
        return warn(check, seen, "sudo dmesg | grep NVRM; if it goes on: sudo reboot")
    return ok(check, "the driver reported no other error since the start")


def check_other_servers(
    neighbours: Sequence[NeighbourFact] | None, programs: Iterable[str]
) -> Finding:
    """Name model servers; idle ones take memory with the next request, so they count too."""
    check = "gpu.other_servers"
    # Containers first: their processes are in the process list, too.
    found: dict[str, tuple[str, str]] = {}
    running = sorted(programs)
    for title, seen, stop in _running(neighbours or (), running):
        found.setdefault(title, (seen, stop))
    if not found and (neighbours is None or not running):
        return not_seen(check, "the containers or the processes could not be listed")
    if not found:
        return ok(check, "no other program that serves models was found")
    names = ", ".join(seen for seen, _ in found.values())
    first = next(iter(found.values()))[1]
    return warn(check, f"also here: {names}; memory is shared with them", first)


def _running(
    neighbours: Sequence[NeighbourFact], programs: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    for item in neighbours:
        server = next((it for it in model_servers() if it.is_container(item)), None)
        if server is not None:
            stop = server.stop.format(name=item.name)
            yield server.title, f"{server.title} (container {item.name})", stop
    for program in programs:
        server = next((it for it in model_servers() if re.search(it.program, program)), None)
        if server is not None:
            yield server.title, f"{server.title} (process {program})", server.stop
