"""What share of a core `status --watch` takes beside what is deployed, in a terminal.

Run: python -m tests.bench.watch_cpu [--seconds 60] [NAME ...]. Exit code 1 at 2 % or more.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

BAR = 0.02
ROWS, COLUMNS = 40, 120
SETTLING_S = 5.0
"""Its start is not what is measured."""


def main() -> int:
    """Print the share and say whether it is below the bar."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("names", nargs="*")
    orders = parser.parse_args()
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "sparkdeploy", "status", "--watch", *orders.names]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment)
    threading.Thread(target=_drain, args=(terminal,), daemon=True).start()
    time.sleep(SETTLING_S)
    before_s, began_s = _cpu_s(process.pid), time.monotonic()
    time.sleep(orders.seconds)
    own_s = _cpu_s(process.pid) - before_s
    span_s = time.monotonic() - began_s
    process.send_signal(signal.SIGINT)
    process.wait(30)
    # Of its children, such as the one that reads the memory, all is counted, also their start.
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    share = own_s / span_s
    print(f"{share:.2%} of a core over {span_s:.0f} s ({own_s:.2f} s of processor time)")
    print(f"with its start and all that it started: {spent.ru_utime + spent.ru_stime:.2f} s")
    return int(share >= BAR)


def _cpu_s(pid: int) -> float:
    """Processor time of a process and of its children that have ended."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _drain(terminal: int) -> None:
    while os.read(terminal, 65536):
        pass


if __name__ == "__main__":
    sys.exit(main())
