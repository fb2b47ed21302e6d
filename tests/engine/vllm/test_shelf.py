"""Every recipe of today's models in miniature, or the reason why there is no rehearsal of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.engine.program import Program
from tests.families import config
from tests.unit.recipe.test_load import SHIPPED

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("host"),
    pytest.mark.runs("rehearse"),
]
OF_THE_122B = frozenset(
    {
        *("35b-v2", "baseline", "dflash", "hybrid", "mtp-1", "mtp-2", "no-hybrid", "v2", "v2-hub"),
        *("v2-kv8", "v2-tq", "v2-tq-3bit", "v2-tq-k8v4"),
    }
)
"""test_rehearsals.py has these."""
BY_THEIR_OWN_CONFIGURATION = (
    *("gpt-oss-120b", "gpt-oss-120b-mxfp4", "qwen3-coder-next", "qwen3-vl-embedding"),
    *("qwen3-vl-reranker", "qwen3.5-397b-int4", "qwen3.6-27b", "qwen3.6-35b", "qwen3.6-35b-mtp"),
    "qwen3.6-35b-nvfp4",
)
"""recipes/facts/models.yaml has what their owners publish, or they are of the twin's family."""
BY_A_SMALL_ONE = {
    "gemma4-26b": "gemma4",
    "nemotron-3-super": "nemotron-h-moe",
    "nemotron-3.5-lightning": "nemotron-h-moe",
}
"""Their configurations are on the hub alone; a test's stands in."""
NOT_REHEARSED = {
    "deepseek-v4-flash": "no configuration of the family was at hand",
    "glm-4.7-flash": "no configuration of the family was at hand",
    "glm-5.3-flash": "needs a fork, and no configuration of the family was at hand",
    "minimax-m2.7": "vLLM 0.32's own model dies of its first request on a CPU",
    "qwen3.8-27b-nvfp4": "no configuration was at hand; its family is that of qwen3.6-27b",
    "qwen3.8-flash-next": "needs a fork, and no configuration of the family was at hand",
    "qwen3.8-flash-next-int4": "needs a fork, and no configuration of the family was at hand",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("shelf"), {"HF_HUB_OFFLINE": "1"})


def test_each_is_rehearsed_or_has_its_reason() -> None:
    rehearsed = {*OF_THE_122B, *BY_THEIR_OWN_CONFIGURATION, *BY_A_SMALL_ONE}
    assert rehearsed.isdisjoint(NOT_REHEARSED)
    assert rehearsed | set(NOT_REHEARSED) == set(SHIPPED)


@pytest.mark.parametrize("name", [*BY_THEIR_OWN_CONFIGURATION, *BY_A_SMALL_ONE])
def test_a_recipe_of_the_shelf_answers(program: Program, tmp_path: Path, name: str) -> None:
    words = ["rehearse", name, "--name", f"shelf-{name}".replace(".", "-")]
    if name in BY_A_SMALL_ONE:
        (tmp_path / "config.json").write_text(json.dumps(config(BY_A_SMALL_ONE[name])))
        words += ["--set", f"model.path={tmp_path}"]
    report = program.answer(*words)
    assert "start" in report["proved"]
    assert "weights" in report["not_proved"]
