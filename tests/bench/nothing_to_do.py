"""Seconds of an `up` with nothing to do, on one machine and on two, with the stand-in engine.

    python -m tests.bench.nothing_to_do [TIMES]

Root; dockerd has to run. Each case is asked TIMES times (5), in turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

import yaml

from tests.cluster.conftest import RECIPE, Program, give_model, give_stand_in
from tests.cluster.machines import cluster_section, two_machines

if TYPE_CHECKING:
    from tests.cluster.machines import Machine

CASES = {
    "one machine": (
        "up",
        "tiny",
        "--solo",
        "--yes",
        "--name",
        "alone",
        "--set",
        "serve.port=18701",
    ),
    "two machines": ("up", "tiny", "--cluster", "--yes"),
    "status of both": ("status",),
}


def prepare(head: Machine, worker: Machine) -> Program:
    config = head.own / "home" / "config"
    (config / "recipes").mkdir(parents=True)
    section = {"cluster": cluster_section((head, worker))}
    (config / "config.yaml").write_text(yaml.safe_dump(section))
    (config / "recipes" / "tiny.yaml").write_text(RECIPE)
    give_stand_in(head, worker)
    program = Program(head)
    give_model(head)
    for command in CASES.values():
        run(program, *command)
    return program


def run(program: Program, *arguments: str) -> float:
    """Return the seconds that a command took; AssertionError when it failed."""
    since_s = time.monotonic()
    done = program.run(*arguments)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - since_s


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with two_machines() as (head, worker):
        program = prepare(head, worker)
        taken: dict[str, list[float]] = {case: [] for case in CASES}
        for _ in range(times):
            for case, command in CASES.items():
                taken[case].append(run(program, *command))
    for case, found in taken.items():
        every = " ".join(f"{item:.2f}" for item in sorted(found))
        print(f"{case:<16} median {statistics.median(found):.2f} s   {every}")


if __name__ == "__main__":
    main()
