"""Takes the stand-in up and down many times in one process, and tells what is left over.

python -m tests.engine.stand_in.cycles COUNT: JSON on stdout, `{before, after}`, each with open
files, resident KiB and threads of this process; `before` is taken after some cycles of warming up.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from pathlib import Path

from sparkdeploy.deploy.removal import down
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.deploy.up import up
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console

WARM_UP = 5


def cycle(number: int) -> None:
    """Start, replace by another version every third time, and end."""
    settings = load_settings()
    versions = [number, -number] if number % 3 == 0 else [number]
    for version in versions:
        request = Request("standin", (f"serve.env.STAND_IN=--text v{version}",))
        resolved = resolve(request, settings)
        up(resolved, request, settings, confirm=lambda _: True)
    down("main")


def figures() -> dict[str, int]:
    """Measure this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return {
        "open_files": len(list(Path("/proc/self/fd").iterdir())),
        "resident_kib": int(status.partition("VmRSS:")[2].split()[0]),
        "threads": threading.active_count(),
    }


def main() -> None:
    """Run the cycles."""
    console.quiet = True
    count = int(sys.argv[1])
    for number in range(WARM_UP):
        cycle(number)
    before = figures()
    for number in range(count):
        cycle(number)
    print(json.dumps({"before": before, "after": figures()}))


if __name__ == "__main__":
    main()
