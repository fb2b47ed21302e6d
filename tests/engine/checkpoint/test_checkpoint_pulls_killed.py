"""`checkpoint pull` killed with SIGKILL: the next one goes on and ends in the same cache."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.program import Program
from tests.hub.double import HubDouble, Repo, hub_double
from tests.hub.xet import IN_PROCESSES
from tests.unit.conftest import REPOSITORY

pytestmark = pytest.mark.runs("checkpoint")

COMMIT = "e" * 40
SEED = 4
FILE_BYTES = 24 << 20
LOST_BYTES = 16 << 20
"""What was on its way, in the buffers of two sockets."""
NEVER = -1
LATE_STEPS = 12


@pytest.fixture
def double(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HubDouble]:
    """A hub with a repository of 72 MiB."""
    folder = tmp_path / "repository"
    folder.mkdir()
    dice = random.Random(SEED)
    for number in (1, 2, 3):
        (folder / f"model-{number}.safetensors").write_bytes(dice.randbytes(FILE_BYTES))
    (folder / "config.json").write_text("{}")
    with hub_double() as made:
        is_xet = request.param == "xet"
        made.repos["lab/model"] = Repo({COMMIT: folder}, {"main": COMMIT}, is_xet=is_xet)
        yield made


def at_points(way: str, points: int) -> pytest.MarkDecorator:
    """Some of one way in every run, thirty of each in the slow one."""
    slow = [pytest.param(it, 30, marks=pytest.mark.slow) for it in ("http", "xet")]
    return pytest.mark.parametrize(
        ("double", "points"), [(way, points), *slow], indirect=["double"]
    )


def cache_of(root: Path) -> dict[str, str]:
    """All of the hub's cache but for locks: where links lead, modes, and what files hold.

    Folders count too: a killed pull may leave an empty one.
    """
    found = {}
    for path in (root / "hub").rglob("*"):
        name = str(path.relative_to(root / "hub"))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.suffix == ".refs":
            # The library notes a link again when it is made again.
            found[name] = "\n".join(sorted(set(path.read_text().splitlines())))
        elif path.is_file() and not path.name.endswith("lock"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = f"{oct(path.stat().st_mode)} {digest}"
        elif path.is_dir():
            found[name] = oct(path.stat().st_mode)
    return found


def environment(double: HubDouble) -> dict[str, str]:
    return {"HF_ENDPOINT": double.endpoint, "PYTHONPATH": str(IN_PROCESSES)}


def pulled(root: Path, double: HubDouble, step: int = NEVER) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.engine.checkpoint.checkpoint_puller"]
    return subprocess.run(
        [*command, double.endpoint, str(root), str(step)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment(double)},
    )


def lost_bytes(double: HubDouble) -> int:
    """What a kill costs at most: what was on its way, or all that had come as chunks."""
    is_xet = double.repos["lab/model"].is_xet
    return 3 * FILE_BYTES if is_xet else 3 * LOST_BYTES


@pytest.mark.timeout(600)
@at_points("http", 2)
def test_a_pull_killed_between_any_bytes_goes_on_there(
    double: HubDouble, tmp_path: Path, points: int
) -> None:
    whole = tmp_path / "whole"
    assert pulled(whole, double).returncode == 0
    expected, total_bytes = cache_of(whole), double.body_bytes
    dice = random.Random(SEED)
    for point in range(points):
        root = tmp_path / f"point-{point}"
        program = Program(root, environment(double))
        double.body_bytes = 0
        double.hold_after(dice.randrange(1 << 20, total_bytes - (1 << 20)))
        process = program.start("checkpoint", "pull", "lab/model")
        assert double.is_held.wait(180)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=180)
        double.go_on.set()
        # Where one is missing, the whole files are counted.
        state = program.answer("checkpoint", "ls", "--json")[0]["state"]
        assert state.partition(",")[0] == f"main = {COMMIT[:12]}"
        done = program.run("checkpoint", "pull", "lab/model")
        assert done.returncode == 0, done.stderr
        assert cache_of(root) == expected
        assert double.body_bytes <= total_bytes + lost_bytes(double)
        assert program.answer("checkpoint", "ls", "--json")[0]["state"].endswith(", verified")
        shutil.rmtree(root)


@pytest.mark.timeout(600)
@at_points("xet", 3)
def test_a_pull_killed_before_a_step_ends_in_the_same_cache(
    double: HubDouble, tmp_path: Path, points: int
) -> None:
    whole = tmp_path / "whole"
    steps = int(pulled(whole, double).stdout)
    expected = cache_of(whole)
    dice = random.Random(SEED)
    # The last steps are the ones that say it is done.
    for step in {*dice.sample(range(steps), points - 2), steps - 1, steps - 3}:
        root = tmp_path / f"step-{step}"
        # Threads take turns, so that the last of their steps may have another number.
        killed = pulled(root, double, step).returncode == -signal.SIGKILL
        assert killed or step > steps - LATE_STEPS, step
        done = pulled(root, double)
        assert done.returncode == 0, (step, done.stderr)
        assert cache_of(root) == expected, step
        shutil.rmtree(root)
