"""Measures how long `sparkdeploy --help` takes beside importing its two heaviest libraries.

Run: python tests/bench/help_start.py [RUNS]. The two commands alternate, so that a busy machine
slows both alike. The bar: at most twice the time of the import. Exit code 1 above it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c 'import typer, pydantic'": [sys.executable, "-c", "import typer, pydantic"],
    "sparkdeploy --help": [sys.executable, "-m", "sparkdeploy", "--help"],
}
BAR = 2.0


def measure(runs: int) -> dict[str, list[float]]:
    """Return the seconds of every run per command; a first run of each warms the page cache."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(runs + 1):
        for name, command in COMMANDS.items():
            taken_s = _time_one(command)
            if turn > 0:
                seconds[name].append(taken_s)
    return seconds


def main() -> int:
    """Print the table; return 0 when the bar holds."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    seconds = measure(runs)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    reference_s, help_s = medians.values()
    print(f"{'command':<38} {'median s':>9} {'best s':>9}   ({runs} runs each, alternating)")
    for name, values in seconds.items():
        print(f"{name:<38} {medians[name]:>9.3f} {min(values):>9.3f}")
    ratio = help_s / reference_s
    print(f"ratio of medians {ratio:.2f}, bar {BAR:.2f}: {'holds' if ratio <= BAR else 'MISSED'}")
    return int(ratio > BAR)


def _time_one(command: list[str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    sys.exit(main())
