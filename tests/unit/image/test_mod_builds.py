"""Building a mod: what is told of its output, and what it changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from sparkdeploy.errors import BuildError
from sparkdeploy.image.stages import stages_of
from sparkdeploy.node.container import ImageFact
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


def test_nothing_is_told_of_a_mod_that_says_nothing_odd(
    mod: Stage, make_settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    host = ScriptedHost([STEP, BuildEvent("1 FAILEDOVER\n")], stage=mod, said=(0, json.dumps(NOTE)))
    build(host, mod, make_settings)
    assert "warning" not in capsys.readouterr().err


def test_the_lines_of_a_log_are_cut(mod: Stage, make_settings: MakeSettings) -> None:
    events = [STEP, BuildEvent("x" * 10_000_000), BuildEvent("failed", error="failed")]
    with pytest.raises(BuildError) as caught:
        build(ScriptedHost(events), mod, make_settings)
    assert len(caught.value.detail or "") < 2_000


@dataclass
class OfManyFiles(ScriptedHost):
    """An engine with an image in which a mod wrote many files, and made one of them another."""

    files: dict[str, str] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def run_once(self, image: str, command: list[str], **_: object) -> tuple[int, str]:
        program, *paths = command[2:]
        if "content_of" not in program:
            written = dict.fromkeys(self.files, "now")
            return 0, json.dumps(NOTE | {"added": [], "written": written, "count": len(written)})
        self.asked.append(len(paths))
        return 0, json.dumps({path: self.files[path] for path in paths})


@pytest.mark.parametrize("before", ["now", "then"])
def test_every_file_that_was_written_is_compared(
    mod: Stage, make_settings: MakeSettings, before: str
) -> None:
    files = {f"/{number:04}": "now" for number in range(2_001)}
    host = OfManyFiles([STEP], stage=mod, files=files | {"/2000": before})
    below = ImageFact("sha256:1", ("sparkdeploy/engine:1",), {labels.FINGERPRINT: "x"}, 1)
    host.images[below.tags[0]] = below
    stage = replace(mod, below=below.tags[0], inputs={**mod.inputs, "below": "x"})
    if before == "now":
        with pytest.raises(BuildError, match="the mod mods/fix changed nothing"):
            build(host, stage, make_settings)
    else:
        assert build(host, stage, make_settings)[0].proof == {"changed": ["/2000"], "count": 1}
    assert sum(host.asked) == len(files)
    assert max(host.asked) <= 1_000
