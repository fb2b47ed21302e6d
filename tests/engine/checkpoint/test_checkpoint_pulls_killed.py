"""`checkpoint pull` killed with SIGKILL: the next one goes on and ends in the same cache."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.engine.checkpoint.checkpoint_killer import tree_hash
from tests.engine.checkpoint.test_checkpoint_interruptions import REPOSITORY
from tests.engine.program import Program
from tests.hub.double import HubDouble, Repo, hub_double

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.runs("checkpoint")

COMMIT = "e" * 40
SEED = 4
FILE_BYTES = 24 << 20
LOST_BYTES = 16 << 20
"""What was on its way, in the buffers of two sockets."""
NEVER = -1


@pytest.fixture
def double(tmp_path: Path) -> Iterator[HubDouble]:
    """A hub with a repository of 72 MiB."""
    folder = tmp_path / "repository"
    folder.mkdir()
    dice = random.Random(SEED)
    for number in (1, 2, 3):
        (folder / f"model-{number}.safetensors").write_bytes(dice.randbytes(FILE_BYTES))
    (folder / "config.json").write_text("{}")
    with hub_double() as made:
        made.repos["lab/model"] = Repo({COMMIT: folder}, {"main": COMMIT})
        yield made


def cache_hash(root: Path) -> str:
    """Blobs, snapshots and branches; locks of the hub's own library are its own."""
    return "".join(
        tree_hash(root / "hub" / "models--lab--model" / part)
        for part in ("blobs", "snapshots", "refs")
    )


def pulled(root: Path, double: HubDouble, step: int = NEVER) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.engine.checkpoint.checkpoint_puller"]
    return subprocess.run(
        [*command, double.endpoint, str(root), str(step)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.mark.timeout(300)
def test_a_pull_killed_between_any_bytes_goes_on_there(double: HubDouble, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert pulled(whole, double).returncode == 0
    total_bytes = double.body_bytes
    dice = random.Random(SEED)
    for point in range(4):
        root = tmp_path / f"point-{point}"
        program = Program(root, {"HF_ENDPOINT": double.endpoint})
        double.body_bytes = 0
        double.hold_after(dice.randrange(1 << 20, total_bytes - (1 << 20)))
        process = program.start("checkpoint", "pull", "lab/model")
        assert double.is_held.wait(60)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        double.go_on.set()
        assert program.answer("checkpoint", "ls", "--json")[0]["state"] == f"main = {COMMIT[:12]}"
        done = program.run("checkpoint", "pull", "lab/model")
        assert done.returncode == 0, done.stderr
        assert cache_hash(root) == cache_hash(whole)
        assert double.body_bytes <= total_bytes + LOST_BYTES + (1 << 16)
        assert program.answer("checkpoint", "ls", "--json")[0]["state"].endswith(", verified")


@pytest.mark.timeout(300)
def test_a_pull_killed_before_a_step_ends_in_the_same_cache(
    double: HubDouble, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    steps = int(pulled(whole, double).stdout)
    dice = random.Random(SEED)
    # The last steps are the ones that say it is done.
    for step in {*dice.sample(range(steps), 4), steps - 1, steps - 3}:
        root = tmp_path / f"step-{step}"
        assert pulled(root, double, step).returncode == -signal.SIGKILL, step
        done = pulled(root, double)
        assert done.returncode == 0, (step, done.stderr)
        assert cache_hash(root) == cache_hash(whole), step
