"""Builds of checkpoints that are killed, run out of disk or lose the network, at random points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.engine.checkpoint.checkpoint_killer import tree_hash
from tests.engine.checkpoint.checkpoint_pair import SMALL, TWENTIETH, PairShape, build_pair
from tests.hub.double import HubDouble, Repo, hub_double
from tests.unit.conftest import REPOSITORY

COMMIT = "c" * 40
SEED = 4
POINTS = 12
MANY_POINTS = 30


@pytest.fixture
def double() -> Iterator[HubDouble]:
    with hub_double() as made:
        yield made


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", script, *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def answer_of(process: subprocess.Popen[str]) -> Any:
    said, _ = process.communicate(timeout=3500)
    assert process.returncode == 0
    return json.loads(said)


def serve(double: HubDouble, shape: PairShape, folder: Path) -> tuple[Path, str]:
    int4, fp8 = build_pair(folder, shape)
    double.repos["lab/fp8"] = Repo({COMMIT: fp8}, {"main": COMMIT})
    return int4, f"{double.endpoint}#lab/fp8"


def interrupted(
    double: HubDouble, shape: PairShape, tmp_path: Path, points: int | Literal["every"]
) -> Any:
    int4, fp8 = serve(double, shape, tmp_path / "pair")
    return answer_of(
        start(
            "tests.engine.checkpoint.checkpoint_killer", tmp_path / "work", int4, fp8, points, SEED
        )
    )


def check_outcomes(report: Any, points: int = POINTS) -> None:
    outcomes = report["outcomes"]
    assert sum(outcomes.values()) == points
    # Moments are guessed by the clock and may come too late on a machine that became faster.
    for kind in ("killed at a step", "disk full", "network cut"):
        assert any(name.startswith(f"{kind}, interrupted") for name in outcomes), kind
        assert not any(name.startswith(f"{kind}, too late") for name in outcomes), kind


def test_every_rerun_after_an_interruption_ends_in_the_same_tree(
    double: HubDouble, tmp_path: Path
) -> None:
    check_outcomes(interrupted(double, SMALL, tmp_path, POINTS))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_build_may_be_killed_before_any_of_its_steps(double: HubDouble, tmp_path: Path) -> None:
    report = interrupted(double, SMALL, tmp_path, "every")
    assert sum(report["outcomes"].values()) == report["steps"] > 100
    assert not any("too late" in outcome for outcome in report["outcomes"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_same_holds_at_a_twentieth_of_the_real_size(double: HubDouble, tmp_path: Path) -> None:
    check_outcomes(interrupted(double, TWENTIETH, tmp_path, MANY_POINTS), MANY_POINTS)


def test_two_builders_at_once_make_one_checkpoint_and_fetch_it_once(
    double: HubDouble, tmp_path: Path
) -> None:
    int4, fp8 = serve(double, SMALL, tmp_path / "pair")
    double.delay_s = 0.002
    root = tmp_path / "both"
    worker = "tests.engine.checkpoint.checkpoint_worker"
    both = [start(worker, root, int4, fp8) for _ in range(2)]
    for process in both:
        answer_of(process)
    fetched_bytes = double.body_bytes
    alone = tmp_path / "alone"
    answer_of(start(worker, alone, int4, fp8))
    assert tree_hash(root) == tree_hash(alone)
    # The second one asks what the repository holds, and then finds the work done.
    assert fetched_bytes < 1.5 * (double.body_bytes - fetched_bytes)
