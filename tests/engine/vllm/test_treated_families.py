"""Treatments of other families than the twin's, served by the real vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import free_port
from tests.engine.program import Program
from tests.engine.vllm.twin_user import unique_name
from tests.families.checkpoints import random_checkpoint

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.runs("down", "up"),
]


@pytest.mark.parametrize(
    ("family", "checkpoint", "fp8_layers"),
    [
        ("llama", {"lm_head": "int8"}, 0),
        # Three of each shared expert, two of each Gated DeltaNet, four of each attention.
        ("qwen3-next", {"lm_head": "int8", "fp8_dense": {"mode": "online"}}, 3 * 8 + 2 * 6 + 4 * 2),
        ("qwen3-next", {"lm_head": "int8", "shared_experts": "int4"}, 0),
    ],
)
def test_another_family_is_treated_and_answers(
    tmp_path: Path, host: DockerHost, family: str, checkpoint: dict[str, Any], fp8_layers: int
) -> None:
    model = random_checkpoint(tmp_path / "model", family)
    recipe = tmp_path / "treated.yaml"
    recipe.write_text(
        json.dumps(
            {
                "schema": 1,
                "name": "treated",
                "title": "a treated model of another family",
                "engine": "cpu-0.32",
                "model": {"path": str(model)},
                "checkpoint": checkpoint,
                "serve": {"port": free_port(), "max_model_len": 1024, "enforce_eager": True},
            }
        )
    )
    program, name = Program(tmp_path), unique_name("treated")
    try:
        report = program.answer("up", str(recipe), "--allow-unsafe", "--name", name, "--yes")
        # The plugin ends a start that converts another number of layers, or no head.
        assert report["changed"]
        (overlay,) = (tmp_path / "data" / "m" / "ck").glob("*/config.json")
        stated = json.loads(overlay.read_text())["quantization_config"]["spark_hybrid"]
        assert (stated["base_method"], stated["lm_head"]) == ("none", "int8")
        assert stated["expected_fp8_layers"] == fp8_layers
        assert ("shared_experts" in stated) is ("shared_experts" in checkpoint)
    finally:
        program.run("down", "--yes", name)
