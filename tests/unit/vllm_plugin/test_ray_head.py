"""Ray's head: what it is started with, and how long it waits for the others."""

from __future__ import annotations

import pytest
from sparkdeploy_vllm import ray_head, ray_worker

pytestmark = pytest.mark.outside


def waited(counts: list[int], wanted: int) -> tuple[int, float]:
    now = [0.0]

    def sleep(duration_s: float) -> None:
        now[0] += duration_s

    answers = iter(counts)
    last = [0]

    def count() -> int:
        last[0] = next(answers, last[0])
        return last[0]

    joined = ray_head.wait_for_nodes(wanted, count, timeout_s=10, clock=lambda: now[0], sleep=sleep)
    return joined, now[0]


def test_it_goes_on_as_soon_as_all_nodes_are_there() -> None:
    assert waited([1, 1, 2], 2) == (2, 2 * ray_head.POLL_S)
    assert waited([1], 2) == (1, 10), "nor does it wait without end"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the head runs, where nothing that it starts succeeds."""
    seen: list[list[str]] = []

    class Ended:
        returncode = 3

    def run(argv: list[str], check: bool) -> Ended:
        seen.append(list(argv))
        return Ended()

    monkeypatch.setattr("subprocess.run", run)
    return seen


def main_of(timeout_s: float) -> int:
    where = ["--address", "10.0.0.1", "--port", "6379", "--nodes", "2"]
    return ray_head.main([*where, "--join-timeout-s", str(timeout_s), "--", "vllm", "serve"])


def test_the_head_has_no_dashboard_for_others(ran: list[list[str]]) -> None:
    assert main_of(0) == 3
    assert "--include-dashboard=false" in ran[0]
    assert ran[0][ran[0].index("--dashboard-host") + 1] == "127.0.0.1"


def test_what_a_failed_head_left_is_stopped_and_it_is_tried_again(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_worker, "PAUSE_S", 0.01)
    assert main_of(0.05) == 3
    assert [argv[:2] for argv in ran[:3]] == [["ray", "start"], ["ray", "stop"], ["ray", "start"]]
