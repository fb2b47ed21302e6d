"""Starts Ray's head, waits until every node has joined, then becomes the server.

Ray 2.60's raylet aborts when its agents, Python programs that import for seconds, take more than
15 s to write down their ports, and no option changes that: a busy machine needs another try.

python -m sparkdeploy_vllm.ray_head --address IP --port N --nodes N -- vllm serve ...
"""

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Sequence

from sparkdeploy_vllm.guard.report import report
from sparkdeploy_vllm.ray_worker import try_again

POLL_S = 0.5
EXIT_NOT_JOINED = 87


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    timeout_s = options.join_timeout_s
    code = try_again(lambda: start(options), timeout_s=timeout_s, event="ray_head_not_started")
    if code != 0:
        report("ray_head_failed", exit_code=code)
        return code
    joined = wait_for_nodes(options.nodes, alive_nodes, timeout_s=timeout_s)
    if joined < options.nodes:
        report("ray_nodes_missing", joined=joined, wanted=options.nodes, exit_code=EXIT_NOT_JOINED)
        return EXIT_NOT_JOINED
    report("ray_nodes_joined", joined=joined)
    # The driver that counted leaves with this program: its connections close on exec, and Ray ends
    # its job as it does after `ray.shutdown()`.
    os.environ["RAY_ADDRESS"] = f"{options.address}:{options.port}"
    os.execvp(options.command[0], options.command)  # noqa: S606 - its arguments come from us
    return 0


def start(options: argparse.Namespace) -> int:
    """Start the head without a dashboard; were one started, it would listen on loopback only."""
    command = [
        *("ray", "start", "--head", "--node-ip-address", options.address),
        *("--port", str(options.port), "--num-cpus", "2"),
        *("--object-store-memory", str(options.object_store_bytes)),
        *("--include-dashboard=false", "--dashboard-host", "127.0.0.1", "--disable-usage-stats"),
    ]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        # What did come up would keep the port.
        subprocess.run(("ray", "stop", "--force"), check=False)
    return code


def wait_for_nodes(
    wanted: int,
    count: Callable[[], int],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    deadline_s = clock() + timeout_s
    while (joined := count()) < wanted and clock() < deadline_s:
        sleep(POLL_S)
    return joined


def alive_nodes() -> int:
    import ray

    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    return sum(bool(node["Alive"]) for node in ray.nodes())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparkdeploy-ray-head")
    parser.add_argument("--address", required=True, help="this node's address on the fabric")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--join-timeout-s", type=float, default=120.0)
    parser.add_argument("--object-store-bytes", type=int, default=2**30)
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
