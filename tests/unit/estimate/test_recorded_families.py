"""The planner's cache against what real vLLMs said of small models of many families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.families.cases import CASES, hold

if TYPE_CHECKING:
    from tests.families.cases import Case

RECORDED = Path(__file__).with_name("recorded_families.json")
SAID = {item["name"]: item for item in json.loads(RECORDED.read_text(encoding="utf-8"))}
NOT_ON_A_CPU = {"deepseek-v3.2", "nemotron-h-moe"}
STARTED = [case for case in CASES if case.name not in NOT_ON_A_CPU]


def test_what_could_not_be_started_is_known_by_name() -> None:
    assert {name for name, said in SAID.items() if "error" in said} == NOT_ON_A_CPU
    assert {case.name for case in CASES} == SAID.keys()


@pytest.mark.parametrize("case", STARTED, ids=lambda case: case.name)
def test_the_planner_says_what_vllm_logged(case: Case) -> None:
    """`python -m tests.engine.vllm.test_capacity_families` made the record."""
    found: dict[str, Any] = SAID[case.name]
    hold(case.family, found)
