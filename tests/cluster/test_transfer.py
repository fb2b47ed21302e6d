"""What goes from the head to the worker, with a stand-in for vLLM; all else is the product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.conftest import Program, ours, up
from tests.cluster.machines import TWINS

if TYPE_CHECKING:
    from tests.cluster.machines import Machine

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("stand_in", "recipe", "nothing_stays"),
    pytest.mark.runs("checkpoint", "down", "plan", "up"),
]


@pytest.mark.slow
def test_the_first_up_sends_what_the_second_does_not(program: Program) -> None:
    first = up(program)
    assert first.returncode == 0, first.stderr
    assert "main answers at http://127.0.0.1:18700" in first.stdout
    assert "weights 0 B" not in first.stderr
    assert "engine 0 B" not in first.stderr
    # Without a recipe it is the configured one.
    again = program.run("up", "--cluster", "--yes")
    assert "nothing to do: main runs on every node" in again.stderr
    assert program.run("down", "main").returncode == 0
    third = up(program)
    assert "spark-b: 0 B sent" in third.stderr


@pytest.mark.slow
def test_a_plan_shows_every_nodes_part_and_does_nothing(
    program: Program, head: Machine, worker: Machine
) -> None:
    plan = program.answer("plan", "tiny", "--cluster")
    assert list(plan["nodes"]) == ["spark-a", "spark-b"]
    assert "--headless" in plan["nodes"]["spark-b"]["command"]
    assert plan["nodes"]["spark-b"]["env"]["GLOO_SOCKET_IFNAME"] == TWINS[0][0]
    text = program.run("up", "tiny", "--cluster", "--dry-run").stdout
    assert "rank 1, worker, 10.77.0.12" in text
    assert ours(head) == ours(worker) == []
