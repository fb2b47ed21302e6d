"""Measures how long Tab takes: each kind of name, as a shell asks for it.

Run: python tests/bench/completion_time.py [RUNS]. The bar: 150 ms for the median of each. Exit code
1 above it. What Python alone takes to start stands in the first row, and how much of its time a
command computed beside it: on a busy machine that is what one can compare.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

ASKED = {
    "commands": [""],
    "options": ["up", "--"],
    "recipes": ["up", ""],
    "deployments": ["down", ""],
    "images": ["image", "rm", ""],
    "nodes": ["up", "--on", ""],
    "runs": ["bench", "show", ""],
    "checkpoints": ["checkpoint", "rm", ""],
    "--show": ["plan", "--show", ""],
    "--set": ["up", "--set", ""],
}
BAR_S = 0.15


def main() -> int:
    """Print the table; return 0 when the bar holds."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    commands = {"(python -c pass)": [sys.executable, "-c", "pass"]}
    complete = [sys.executable, "-m", "sparkdeploy", "__complete", "words"]
    commands |= {name: [*complete, *words] for name, words in ASKED.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    # They alternate, so that a busy machine slows all alike; the first turn warms the page cache.
    for turn in range(runs + 1):
        for name, command in commands.items():
            taken = _time_one(command)
            if turn > 0:
                seconds[name].append(taken)
    print(f"{'median ms of':<18} {'waiting':>9} {'computing':>9}   ({runs} runs each, alternating)")
    slowest_s = 0.0
    for name, values in seconds.items():
        waited_s, computed_s = map(statistics.median, zip(*values, strict=True))
        slowest_s = max(slowest_s, waited_s)
        print(f"{name:<18} {waited_s * 1e3:>9.0f} {computed_s * 1e3:>9.0f}")
    print(f"bar {BAR_S * 1e3:.0f} ms: {'holds' if slowest_s <= BAR_S else 'MISSED'}")
    return int(slowest_s > BAR_S)


def _time_one(command: list[str]) -> tuple[float, float]:
    """Return the seconds that it took, and those that it computed."""
    started_s, computed_s = time.perf_counter(), _computed_s()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_s, _computed_s() - computed_s


def _computed_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
