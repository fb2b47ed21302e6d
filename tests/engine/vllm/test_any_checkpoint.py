"""Draft vocabulary, FP8 layers and INT8 head of other architectures, by the real vLLM: same text.

The grammar of the tiny models decides their texts by wide margins, so that FP8 changes none.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.inside.containers import CPU_SHARES, python_in
from tests.engine.shipped_stages import engine_image
from tests.unit.conftest import REPOSITORY

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "inside" / "any_checkpoint.py"
SAID = "SAID "
FP8_LAYERS = {"nvfp4": 25, "next-fp8": 22, "dense": 25}
"""Matrices that each checkpoint leaves at 16 bits; a lent GPU counted as many."""


def test_other_architectures_say_the_same_with_every_conversion(
    host: DockerHost, mark: str, tmp_path: Path
) -> None:
    """Qwen3.6 with NVFP4 experts, Qwen3-Next with FP8 experts, and a dense model, each with MTP."""
    shutil.copytree(REPOSITORY / "sparkdeploy", tmp_path / "sparkdeploy")
    shutil.copytree(REPOSITORY / "tests" / "gpu" / "stand", tmp_path / "tests" / "gpu" / "stand")
    # The image has what the rest of sparkdeploy asks for here.
    shutil.copytree(Path(platformdirs.__file__).parent, tmp_path / "platformdirs")
    shutil.copy(PROGRAM, tmp_path)
    environment = {"PYTHONPATH": "/lab", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [f"/lab/{PROGRAM.name}"]
    # Others wait for its turn to end.
    output = python_in(engine_image(host), tmp_path, mark, command, CPU_SHARES, **environment)
    engines = _engines(output)
    for architecture, layers in FP8_LAYERS.items():
        plain, fast = engines[architecture], engines[f"{architecture}-fast"]
        assert len({token for text in plain["ids"] for token in text}) > 10, "it says nothing"
        assert fast["ids"] == plain["ids"], architecture
        assert plain["accepted"] == 0 < fast["accepted"], architecture
        converted = f"sparkdeploy: spark-hybrid active: fp8={layers} layers, lm_head=int8"
        assert converted in fast["log"], fast["log"]
        assert "sparkdeploy: draft head active: rows=2048" in fast["log"], fast["log"]
        assert "sparkdeploy: " not in plain["log"], plain["log"]


def _engines(output: str) -> dict[str, dict[str, Any]]:
    """Return each engine's answer by its name, and as `log` what was printed since the last one."""
    engines: dict[str, dict[str, Any]] = {}
    log: list[str] = []
    for line in output.splitlines():
        if line.startswith(SAID):
            answer = json.loads(line.removeprefix(SAID))
            engines[answer["name"]] = {**answer, "log": "\n".join(log)}
            log = []
        else:
            log.append(line)
    return engines
