"""Processor seconds: of the whole machine, of a tree of processes, and of containers.

Wall time stretches with whatever else a machine runs; processor time hardly does."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LOOK_S = 3.0
"""How often containers are looked at; what one takes after the last look before its end is lost."""
CGROUPS = Path("/sys/fs/cgroup")
PLACES = (
    ("cpuacct/docker/*/cpuacct.usage", 1e9),  # version 1, Docker's own driver
    ("cpuacct/system.slice/docker-*.scope/cpuacct.usage", 1e9),
    ("docker/*/cpu.stat", 1e6),  # version 2
    ("system.slice/docker-*.scope/cpu.stat", 1e6),
)
"""Where the kernel counts a container's time, and its units in a second."""


def machine_s() -> float:
    """Return the seconds that all processors have worked: user, nice and system."""
    words = Path("/proc/stat").read_text().split(maxsplit=4)
    return sum(map(int, words[1:4])) / TICKS_PER_S


def tree_s(pid: int) -> float:
    """Return the seconds of a process, of all below it, and of those that they have waited for."""
    times: dict[int, int] = {}
    below: defaultdict[int, list[int]] = defaultdict(list)
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own = int(file.parent.name)
        times[own] = sum(map(int, fields[11:15]))
        below[int(fields[1])].append(own)
    total, left = 0, [pid]
    while left:
        own = left.pop()
        total += times.get(own, 0)
        left += below[own]
    return total / TICKS_PER_S


class ContainerWatch:
    """Counts the seconds of the containers on the machine's engine that mount a worker's folder.

    Those of engines that tests start themselves are below the worker in the tree of processes.
    """

    def __init__(self, mark: str) -> None:
        """Begin; `mark` is a part of every path in that folder."""
        self._mark = mark
        self._seconds: dict[Path, float] = {}
        self._is_ours: dict[Path, bool] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._look_on, daemon=True).start()

    def total_s(self) -> float:
        """Return what they took so far."""
        self._look()
        return sum(self._seconds.values())

    def _look_on(self) -> None:
        while True:
            self._look()
            time.sleep(LOOK_S)

    def _look(self) -> None:
        with self._lock:
            for file, units_per_s in _counters():
                try:
                    if self._is_of_ours(file):
                        number = file.read_text().split()[-1 if units_per_s == 1e9 else 1]
                        self._seconds[file] = int(number) / units_per_s
                except OSError:  # It has just ended.
                    continue

    def _is_of_ours(self, counter: Path) -> bool:
        """Say it once and for all of each container, as soon as it has a process."""
        if counter not in self._is_ours:
            pids = (counter.parent / "cgroup.procs").read_text().split()
            if not pids:
                return False
            process = Path("/proc", pids[0])
            status = (process / "status").read_text()
            namespaces = status.partition("NSpid:")[2].partition("\n")[0].split()
            mounts = (process / "mountinfo").read_text()
            self._is_ours[counter] = len(namespaces) == 2 and self._mark in mounts
        return self._is_ours[counter]


def _counters() -> Iterator[tuple[Path, float]]:
    for pattern, units_per_s in PLACES:
        for file in CGROUPS.glob(pattern):
            yield file, units_per_s


class Account:
    """Charges seconds to whoever ran when they were spent."""

    def __init__(self, spent_s: Callable[[], float], before: str) -> None:
        """Charge all that `spent_s` says was spent in all so far to `before`."""
        self.charged_s = defaultdict(float, {before: spent_s()})
        self._spent_s = spent_s
        self._last_s = self.charged_s[before]
        self._name: str | None = None

    def turn_to(self, name: str | None) -> None:
        """Charge what was spent since the last turn to who had it; `name` has the next one."""
        if name == self._name:
            return
        now_s = self._spent_s()
        if self._name is not None:
            self.charged_s[self._name] += now_s - self._last_s
        self._name, self._last_s = name, now_s
