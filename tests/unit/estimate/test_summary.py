"""`plan --hardware` of every recipe, as a terminal of eighty columns shows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkdeploy.authoring.outlook import ground_for, outlook_for
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
        outlook = outlook_for(name, (), hardware="spark")
        console.answer_blocks(summary_lines(outlook, settings))
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 40, name
        # A fix can be typed as it stands, and is not broken.
        assert max(len(line) for line in lines if not line.startswith("      fix: ")) <= 80, name
        judged = r"(fits|does not fit|may fit|would not start) on (2 x )?NVIDIA DGX Spark"
        assert re.match(judged, lines[0]), name
        assert (" 2 x " in lines[0]) == (resolved.recipe.cluster.least_nodes > 1), name
        assert sum(line.startswith("start: ") for line in lines) == 1, name
        assert resolved.recipe.preview is None or resolved.recipe.preview.split()[0] in str(lines)
