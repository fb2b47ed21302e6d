"""Measures what share of one core the guard takes while it watches.

Run: python tests/bench/guard_overhead.py [SECONDS]. Once before the first answer of /health (it
asks a port where nobody listens, every two seconds) and once without that question. The time on
a processor is the scheduler's own count, in nanoseconds. The bar: 0.5 %. Exit code 1 above it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

PLUGIN_TREE = Path(__file__).parents[2] / "sparkdeploy" / "vllm_plugin"
BAR_PERCENT = 0.5
WARM_UP_S = 1.0
CASES = {
    "watching memory": (),
    "and asking /health": ("--health-url", "http://127.0.0.1:9/health"),
}


def measure_percent(options: tuple[str, ...], duration_s: float) -> float:
    """Return the share of one core in percent, after a second of warming up."""
    command = [sys.executable, "-m", "sparkdeploy_vllm.guard", "--memory-floor-bytes", "1"]
    guard = subprocess.Popen(
        [*command, *options, "--", "sleep", "3600"],
        env={**os.environ, "PYTHONPATH": str(PLUGIN_TREE)},
    )
    try:
        time.sleep(WARM_UP_S)
        before_ns, started_s = _on_cpu_ns(guard.pid), time.monotonic()
        time.sleep(duration_s)
        used_ns, elapsed_s = _on_cpu_ns(guard.pid) - before_ns, time.monotonic() - started_s
    finally:
        guard.terminate()
        guard.wait()
    return used_ns / 1e9 / elapsed_s * 100


def main() -> int:
    """Print the table; return 0 when the bar holds."""
    duration_s = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    worst = 0.0
    for name, options in CASES.items():
        percent = measure_percent(options, duration_s)
        worst = max(worst, percent)
        print(f"{name:<20} {percent:.3f} % of one core over {duration_s:g} s")
    print(f"bar {BAR_PERCENT} %: {'holds' if worst <= BAR_PERCENT else 'MISSED'}")
    return int(worst > BAR_PERCENT)


def _on_cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


if __name__ == "__main__":
    sys.exit(main())
