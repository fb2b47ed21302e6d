"""`plan --hardware` of every recipe, as a terminal of eighty columns shows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkdeploy.authoring.model_facts import WhenMissing
from sparkdeploy.authoring.outlook import ground_for
from sparkdeploy.authoring.summary import summary_lines
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    import pytest


def test_every_recipe_is_planned_on_one_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    settings = load_settings()
    ground = ground_for("spark", settings)
    for name, resolved in ground.loaded.items():
        assert isinstance(resolved, Resolved)
        for cluster in (False, resolved.recipe.cluster.least_nodes > 1):
            outlook = ground.outlook(resolved, WhenMissing.NOBODY, cluster=cluster)
            console.answer_blocks(summary_lines(outlook, settings))
            lines = capsys.readouterr().out.splitlines()
            assert len(lines) <= 40, name
            assert max(map(len, lines)) <= 80, name
            assert re.match(r"(fits|does not fit|may fit) on (2 x )?NVIDIA DGX Spark", lines[0])
            assert sum(line.startswith("start: ") for line in lines) == 1, name
