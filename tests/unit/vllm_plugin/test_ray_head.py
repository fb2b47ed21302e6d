"""Ray's head: what it is started with, and how long it waits for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy_vllm import ray_head

if TYPE_CHECKING:
    import pytest


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


def test_it_gives_up_and_says_how_many_came() -> None:
    assert waited([1], 2) == (1, 10)


def test_the_head_has_no_dashboard_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    class Ended:
        returncode = 3

    def run(argv: list[str], check: bool) -> Ended:
        seen.append(argv)
        return Ended()

    monkeypatch.setattr("subprocess.run", run)
    code = ray_head.main(
        ["--address", "10.0.0.1", "--port", "6379", "--nodes", "2", "--", "vllm", "serve"]
    )
    assert code == 3
    assert "--include-dashboard=false" in seen[0]
    assert seen[0][seen[0].index("--dashboard-host") + 1] == "127.0.0.1"
