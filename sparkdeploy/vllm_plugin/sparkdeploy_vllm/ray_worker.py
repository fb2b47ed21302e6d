"""Joins Ray's head, which may still be starting, and stays with it.

python -m sparkdeploy_vllm.ray_worker --join-timeout-s 120 -- ray start --block --address ...
"""

import argparse
import subprocess
import time
from collections.abc import Callable, Sequence

from sparkdeploy_vllm.guard.report import report

PAUSE_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sparkdeploy-ray-worker")
    parser.add_argument("--join-timeout-s", type=float, default=120.0)
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    options = parser.parse_args(argv)
    # Ray refuses a head whose own node is not registered yet.
    return try_again(
        lambda: subprocess.run(options.command, check=False).returncode,
        timeout_s=options.join_timeout_s,
        event="ray_not_joined",
    )


def try_again(
    attempt: Callable[[], int],
    *,
    timeout_s: float,
    event: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    deadline_s = clock() + timeout_s
    while (code := attempt()) != 0 and clock() < deadline_s:
        report(event, exit_code=code)
        sleep(PAUSE_S)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
