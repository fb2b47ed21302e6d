"""A Ray worker that comes before its head."""

from __future__ import annotations

import sys

import pytest
from sparkdeploy_vllm import ray_worker


def joined(codes: list[int], timeout_s: float) -> tuple[int, int]:
    """The code that it ends with, and how many attempts it took."""
    now, tried = [0.0], [0]

    def attempt() -> int:
        tried[0] += 1
        return codes[min(tried[0], len(codes)) - 1]

    def sleep(duration_s: float) -> None:
        now[0] += duration_s

    code = ray_worker.try_again(
        attempt, timeout_s=timeout_s, event="tried", clock=lambda: now[0], sleep=sleep
    )
    return code, tried[0]


def test_it_tries_until_the_head_is_there() -> None:
    assert joined([1, 1, 0], 120) == (0, 3)


def test_it_gives_up_with_the_last_code() -> None:
    assert joined([5], 4) == (5, 3)


def test_it_runs_the_command_it_is_given(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["--join-timeout-s", "0", "--", sys.executable, "-c", "print('joined'); exit(3)"]
    assert ray_worker.main(argv) == 3
    assert "joined" in capfd.readouterr().out
