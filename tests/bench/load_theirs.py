"""`vllm bench serve` in one process for several turns: its imports take longer than a turn.

    python -m tests.bench.load_theirs --cores 2,3

Says `ready`; then for each line of JSON words on its input it runs `vllm bench serve` with them and
says `done`, or `failed` and why. What vLLM prints goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores")
    cores = parser.parse_args().cores
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # Here, because what vLLM prints while it is imported must not be taken for an answer.
    from vllm.benchmarks.serve import add_cli_args  # type: ignore[import-not-found]
    from vllm.benchmarks.serve import main as serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    wanted = FlexibleArgumentParser()
    add_cli_args(wanted)
    print("ready", file=answers)
    for line in sys.stdin:
        try:
            serve(wanted.parse_args(json.loads(line)))
            print("done", file=answers)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - said, and the next turn goes on
            traceback.print_exc()
            print(f"failed: {error!r}", file=answers)


if __name__ == "__main__":
    main()
