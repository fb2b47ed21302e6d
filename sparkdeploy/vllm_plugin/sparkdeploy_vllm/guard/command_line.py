"""The guard's arguments."""

import argparse
import gc
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sparkdeploy_vllm.guard.health import HealthProbe
from sparkdeploy_vllm.guard.memory import AvailableMemory, lock_memory
from sparkdeploy_vllm.guard.processes import become_subreaper, descendants, shut_out_others
from sparkdeploy_vllm.guard.report import line_of, report, write_at_once
from sparkdeploy_vllm.guard.supervision import Orders, Supervision

KEY_VARIABLE = "VLLM_API_KEY"
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Guard the command after `--`; return the code this process should exit with."""
    options = _parser().parse_args(argv)
    try:
        orders = Orders(
            argv=options.command,
            env=_child_env(os.environ, options.key_file),
            memory_floor_bytes=options.memory_floor_bytes,
            grace_s=options.grace_s,
            max_restarts=options.max_restarts,
        )
        memory = AvailableMemory(options.meminfo)
        probe = HealthProbe.from_url(options.health_url) if options.health_url else None
    except (OSError, ValueError) as error:
        report("refused", error=str(error), exit_code=EXIT_USAGE)
        return EXIT_USAGE
    become_subreaper()
    supervision = Supervision(orders, memory=memory, probe=probe)
    shut_out_others()
    if orders.memory_floor_bytes is not None:
        _make_ready(memory)
    return supervision.run()


def _make_ready(memory: AvailableMemory) -> None:
    """Go once through what an emergency needs, keep all of it in RAM, and collect no more.

    When memory is gone, a page that is not there yet may never come.
    """
    memory.read_bytes()
    descendants(os.getpid())
    line_of("memory_floor", mem_available_bytes=0)
    with suppress(OSError):
        write_at_once(b"")
    gc.collect()
    gc.freeze()
    gc.disable()
    if refusal := lock_memory():
        report("memory_not_locked", error=refusal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparkdeploy-guard",
        description="Run a command as PID 1: signals, orphans, key file, memory floor, restarts.",
    )
    parser.add_argument("--memory-floor-bytes", type=int, metavar="N")
    parser.add_argument("--meminfo", type=Path, default=Path("/proc/meminfo"), metavar="PATH")
    parser.add_argument("--key-file", type=Path, metavar="PATH")
    parser.add_argument("--grace-s", type=float, default=20.0, metavar="S")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="N")
    parser.add_argument("--health-url", metavar="URL", help="restarts need one 200 from here")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    return parser


def _child_env(env: Mapping[str, str], key_file: Path | None) -> dict[str, str]:
    """The child's environment: ours, and the key when there is a key file (nowhere else)."""
    child_env = dict(env)
    if key_file is not None:
        key = key_file.read_text(encoding="utf-8").strip()
        if not key:
            raise ValueError(f"the key file {key_file} is empty")
        child_env[KEY_VARIABLE] = key
    return child_env
