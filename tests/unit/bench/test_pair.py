"""`bench pair`: two servers measured in turns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakes.vllm_server import FakeEngine
    from tests.unit.program import Done

FIVE = ("--suite", "five", "--rounds", "1", "--runs", "2")


def sides_of(engine: FakeEngine) -> tuple[str, str]:
    """The same server by two addresses."""
    return engine.url, engine.url.replace("127.0.0.1", "localhost")


@pytest.mark.outside
def test_two_servers_are_measured_in_turns(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    done = bench("pair", *sides_of(engine), *FIVE)

    assert done.returncode == 0, done.stderr
    kept = [*(tmp_path / "state" / "bench").glob("*.json")]
    suites = [json.loads(path.read_text())["suites"] for path in kept]
    assert [[suite["name"] for suite in found] for found in suites] == [["five"]] * 4
    assert "five, tok/s end to end" in done.stdout
    assert "all runs of a side are of one start" in done.stderr


@pytest.mark.outside
def test_a_load_does_not_pair(bench: Callable[..., Done], engine: FakeEngine) -> None:
    done = bench("pair", *sides_of(engine), "--suite", "five,load")

    assert (done.returncode, done.stdout) == (2, "")
    assert "a load is taken alone" in done.stderr
    assert engine.given_tokens == 0
