"""Building a mod: what is told of its output, and what it changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.errors import BuildError
from sparkdeploy.image.stages import stages_of
from sparkdeploy.node.reports import BuildEvent
from sparkdeploy.settings import resources
from tests.fakes.builds import ScriptedHost, build

if TYPE_CHECKING:
    from sparkdeploy.image.stages import Stage

    from .conftest import LoadEngine, MakeSettings

NOTE: dict[str, object] = {"added": ["/new"], "removed": [], "written": {}, "count": 1}
STEP = BuildEvent("Step 5/7 : RUN x\n")


@pytest.fixture
def mod(load: LoadEngine) -> Stage:
    base = stages_of(
        load("cpu-0.32"), base_source="registry", architecture="x86_64", resources=resources()
    )[0]
    return replace(base, name="mod", mod="mods/fix", mod_slug="fix", runs_on="cpu")


@pytest.mark.parametrize(
    "line",
    [
        "run.sh: line 3: pacth: command not found",
        "sed: can't read /x: No such file or directory",
        "1 out of 1 hunk FAILED -- saving rejects to file x.rej",
    ],
)
def test_what_failed_within_a_mod_that_ended_well_is_told(
    mod: Stage, make_settings: MakeSettings, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    events = [STEP, BuildEvent(f"before\n{line}\nafter\n")]
    host = ScriptedHost(events, stage=mod, said=(0, json.dumps(NOTE)))
    build(host, mod, make_settings)
    warned = capsys.readouterr().err
    assert "warning: the mod mods/fix ended well, and said on its way:\n" in warned
    assert warned.count(line) == 1
    assert "after" not in warned


def test_the_lines_of_a_log_are_cut(mod: Stage, make_settings: MakeSettings) -> None:
    events = [STEP, BuildEvent("x" * 10_000_000), BuildEvent("failed", error="failed")]
    with pytest.raises(BuildError) as caught:
        build(ScriptedHost(events), mod, make_settings)
    assert len(caught.value.detail or "") < 2_000
