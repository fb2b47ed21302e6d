"""Measures how long Tab takes: each kind of name, as a shell asks for it.

Run: python tests/bench/completion_time.py [RUNS]. The bar: 150 ms for the median of each. Exit code
1 above it. What Python alone takes to start stands in the first row.
"""

from __future__ import annotations

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
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    # They alternate, so that a busy machine slows all alike; the first turn warms the page cache.
    for turn in range(runs + 1):
        for name, command in commands.items():
            taken_s = _time_one(command)
            if turn > 0:
                seconds[name].append(taken_s)
    print(f"{'names':<18} {'median ms':>9} {'worst ms':>9}   ({runs} runs each, alternating)")
    for name, values in seconds.items():
        print(f"{name:<18} {statistics.median(values) * 1e3:>9.0f} {max(values) * 1e3:>9.0f}")
    return int(any(statistics.median(values) > BAR_S for values in seconds.values()))


def _time_one(command: list[str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    sys.exit(main())
