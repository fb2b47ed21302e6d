"""The planner against what real vLLMs said: of small models of many families, and of large ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.estimate.memory import Budget, make_budget
from sparkdeploy.recipe.load import load_recipe
from tests.families.cases import CASES, CPU, GPU, Machine, hold
from tests.families.derived import derived_facts
from tests.gpu.families import large_config
from tests.unit.conftest import SHIPPED
from tests.unit.estimate.shipped import HARDWARE

HERE = Path(__file__).parent
FAMILY = {case.name: case.family for case in CASES}
GIB = 2**30


def recorded(name: str) -> dict[str, dict[str, Any]]:
    found = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return {item["name"]: item for item in found}


ON_A_CPU, ON_AN_H100 = recorded("recorded_families"), recorded("recorded_families_h100")
LARGE = recorded("recorded_large_h100")
STARTED = [
    (machine, said)
    for machine, known in ((CPU, ON_A_CPU), (GPU, ON_AN_H100))
    for said in known.values()
    if "error" not in said
]


def test_what_could_not_be_started_is_known_by_name() -> None:
    """docs/figures/estimates.md has them: the first on neither, the others on an H100 alone."""
    failed = [
        {name for name, it in known.items() if "error" in it} for known in (ON_A_CPU, ON_AN_H100)
    ]
    assert failed[0] == {"deepseek-v3.2", "nemotron-h-moe"}
    assert {name.split(" ")[0] for name in failed[1]} == {
        "deepseek-v3.2",
        "gemma4",
        "granite-hybrid",
        "qwen3.5-moe",
    }


def test_every_family_was_started_somewhere() -> None:
    started = {FAMILY[said["name"]] for _, said in STARTED}
    assert {case.family for case in CASES} - started == {"deepseek-v3.2"}


@pytest.mark.parametrize(
    ("machine", "said"),
    STARTED,
    ids=[f"{machine.name} {said['name']}" for machine, said in STARTED],
)
def test_the_planner_says_what_vllm_logged(machine: Machine, said: dict[str, Any]) -> None:
    """0.32 for the CPU: `python -m tests.engine.vllm.test_capacity_families`; 0.25.1 on an H100:
    docs/figures/capacity-h100.md."""
    hold(FAMILY[said["name"]], said, machine)


def number(said: dict[str, Any], pattern: str) -> float:
    found = re.search(pattern, "\n".join(said["log"]))
    assert found, pattern
    return float(found[1].replace(",", ""))


def budget_of(name: str) -> Budget:
    """The planner's, for what the record was started with."""
    facts = derived_facts(name, large_config(name))
    assert facts is not None
    machine = HARDWARE["h100"]
    changed = (
        "serve.gpu_memory_utilization=0.9",
        f"serve.max_num_batched_tokens={LARGE[name]['batched_tokens']}",
        "serve.max_num_seqs=256",
        "serve.enforce_eager=true",
        "serve.max_model_len=null",
    )
    recipe = load_recipe(SHIPPED, "baseline", changed)
    return make_budget(recipe, facts, machine)


@pytest.mark.parametrize("name", LARGE)
def test_weights_in_memory_are_what_loading_took(name: str) -> None:
    took = number(LARGE[name], r"Model loading took ([\d.]+) GiB")
    assert budget_of(name).weight_bytes / GIB == pytest.approx(took, rel=0.01)


@pytest.mark.parametrize("name", LARGE)
def test_tokens_are_those_that_were_left_after_profiling(name: str) -> None:
    row = budget_of(name).longest
    assert row is not None
    logged = number(LARGE[name], r"GPU KV cache size: ([\d,]+) tokens")
    assert row.tokens == pytest.approx(logged, rel=0.03)
