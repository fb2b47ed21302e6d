"""Draft vocabulary, FP8 layers and INT8 head of other architectures, by the real vLLM: same text.

The grammar of the tiny model decides its text by wide margins, so that FP8 changes none of it.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.inside.containers import python_in
from tests.engine.inside.test_checkpoint_readers import engine_image
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from sparkdeploy.node.host import DockerHost

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parent / "inside" / "any_checkpoint.py"
NOT_IN_THE_IMAGE = ("platformdirs",)


@pytest.mark.parametrize("architecture", ["moe", "next", "dense"])
def test_other_architectures_say_the_same_with_every_conversion(
    host: DockerHost, mark: str, tmp_path: Path, architecture: str
) -> None:
    shutil.copytree(REPOSITORY / "sparkdeploy", tmp_path / "sparkdeploy")
    shutil.copytree(REPOSITORY / "tests" / "gpu" / "stand", tmp_path / "tests" / "gpu" / "stand")
    for name in NOT_IN_THE_IMAGE:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        shutil.copytree(Path(found.origin).parent, tmp_path / name)
    shutil.copy(PROGRAM, tmp_path)
    command = [f"/lab/{PROGRAM.name}", architecture]
    environment = {"PYTHONPATH": "/lab", "VLLM_CPU_KVCACHE_SPACE": "1"}
    output = python_in(engine_image(host), tmp_path, mark, command, **environment)
    lines = [line.partition("SAID ")[2] for line in output.splitlines() if "SAID " in line]
    plain, mtp, draft, fast, drafted = map(json.loads, lines)
    assert len({token for text in plain["ids"] for token in text}) > 10, "a text that says nothing"
    for other in (mtp, draft, fast, drafted):
        assert other["ids"] == plain["ids"], other["name"]
    assert plain["accepted"] == fast["accepted"] == 0
    for drafting in (mtp, draft, drafted):
        assert drafting["accepted"] > 0, drafting["name"]
