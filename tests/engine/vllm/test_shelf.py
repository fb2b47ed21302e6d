"""Every recipe of today's models in miniature, or the reason why there is no rehearsal of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.program import Program
from tests.families import config
from tests.rehearsed import BY_A_SMALL_ONE, BY_THEIR_OWN_CONFIGURATION

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("host"),
    pytest.mark.runs("rehearse"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("shelf"), {"HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize("name", [*BY_THEIR_OWN_CONFIGURATION, *BY_A_SMALL_ONE])
def test_a_recipe_of_the_shelf_answers(program: Program, tmp_path: Path, name: str) -> None:
    words = ["rehearse", name, "--name", f"shelf-{name}".replace(".", "-")]
    if name in BY_A_SMALL_ONE:
        (tmp_path / "config.json").write_text(json.dumps(config(BY_A_SMALL_ONE[name])))
        words += ["--set", f"model.path={tmp_path}"]
    report = program.answer(*words)
    assert "start" in report["proved"]
    assert "weights" in report["not_proved"]
