"""Mods inside an image: applied, refused, and what their builds say."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import cast

import pytest

from sparkdeploy import labels
from sparkdeploy.errors import BuildError
from sparkdeploy.image import proof
from sparkdeploy.image.inside import apply_mod
from sparkdeploy.image.inside.arguments import as_text, flags
from sparkdeploy.image.proof import prove_stage
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.reports import BuildEvent
from tests.fakes.builds import ScriptedHost, build

STATE = (1, 1, 1, 1, 1)
OTHER = (1, 2, 2, 1, 1)


@pytest.mark.parametrize("has_own", [True, False])
def test_a_python_without_pip_borrows_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_own: bool
) -> None:
    wheels, mod = tmp_path / "wheels", tmp_path / "mod"
    wheels.mkdir()
    mod.mkdir()
    with zipfile.ZipFile(wheels / "pip-23.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pip/__init__.py", "")
        wheel.writestr("pip/__main__.py", "import sys; print('borrowed', *sys.argv[1:])")
    (mod / "run.sh").write_text(
        'pip install x > told\npython3 -m pip list >> told\necho "$PYTHONPATH" >> told\n'
    )
    found = object() if has_own else None
    monkeypatch.setattr(apply_mod, "find_spec", lambda name: found if name == "pip" else None)
    monkeypatch.setattr(apply_mod, "PIP_WHEELS", wheels)
    monkeypatch.setattr(apply_mod, "PROGRAMS", tmp_path / "bin")
    monkeypatch.setattr(apply_mod, "USUAL_PACKAGES", tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    made = [path.name for path in apply_mod._stand_ins()]
    assert made == (["python", "python3"] if has_own else ["python", "python3", "pip", "pip3"])
    if not has_own:
        assert apply_mod._run(mod) == 0
        path = f"/nowhere:{wheels}/pip-23.0-py3-none-any.whl"
        assert (mod / "told").read_text() == f"borrowed install x\nborrowed list\n{path}\n"


def test_all_that_was_written_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_mod, "MAX_NOTED", 1)
    names = [str(tmp_path / f"{number}") for number in range(3)]
    for name in names:
        Path(name).write_text(name)
    told = apply_mod.changes({}, dict.fromkeys(names, STATE))
    assert (told["added"], told["count"]) == (names[:1], 3)
    told = apply_mod.changes(dict.fromkeys(names, STATE), dict.fromkeys(names, OTHER))
    assert (list(told["written"]), told["count"]) == (names, 3)  # type: ignore[call-overload]


NOTE: dict[str, object] = {"added": ["/new"], "removed": [], "written": {}, "count": 1}
STEP = BuildEvent("Step 5/7 : RUN x\n")


@pytest.fixture
def mod(stages: tuple[Stage, ...]) -> Stage:
    return replace(stages[0], name="mod", mod="mods/fix", mod_slug="fix", runs_on="cpu")


@pytest.mark.parametrize(
    "line",
    [
        "run.sh: line 3: pacth: command not found",
        "sed: can't read /x: No such file or directory",
        "1 out of 1 hunk FAILED -- saving rejects to file x.rej",
    ],
)
def test_what_failed_within_a_mod_that_ended_well_is_told(
    mod: Stage, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    events = [STEP, BuildEvent(f"before\n{line}\nafter\n")]
    named = replace(mod, mod="mods/größe $x")
    host = ScriptedHost(events, stage=mod, said=(0, json.dumps(NOTE)))
    fact, _ = build(host, named)
    assert fact.labels[labels.MOD] == "mods/größe $x"
    warned = capsys.readouterr().err
    assert "warning: the mod mods/größe $x ended well, and said on its way:\n" in warned
    assert warned.count(line) == 1
    assert "after" not in warned


class LookedInto(ScriptedHost):
    """An engine whose image below holds the files of this machine."""

    def run_once(self, image: str, command: list[str], **_: object) -> tuple[int, str]:
        if image != "below":
            return self.said
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr


@pytest.mark.outside
@pytest.mark.parametrize("content", ["before", "after"])
def test_a_mod_that_writes_what_was_there_has_changed_nothing(
    mod: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(proof, "COMPARED_AT_ONCE", 1)
    same, other = tmp_path / "same", tmp_path / "x.py"
    for path in (same, other):
        path.write_text("before")
    held = apply_mod.content_of(same)
    written = {str(same): held, str(other): held if content == "before" else "after"}
    note = {"added": [], "removed": [], "written": written, "count": 2}
    host = cast("DockerHost", LookedInto([], said=(0, json.dumps(note))))
    stage = replace(mod, below="below")
    if content == "before":
        with pytest.raises(BuildError, match="the mod mods/fix changed nothing in below"):
            prove_stage(host, stage, "sha256:new")
    else:
        told = json.loads(prove_stage(host, stage, "sha256:new"))
        assert told == {"changed": [str(other)], "count": 1}


def test_the_lines_of_a_log_are_cut(mod: Stage) -> None:
    events = [STEP, BuildEvent("x" * 10_000_000), BuildEvent("failed", error="failed")]
    with pytest.raises(BuildError) as caught:
        build(ScriptedHost(events), mod)
    assert len(caught.value.detail or "") < 2_000


class Kind(Enum):
    ONE = "one"
    TWO = "two"


def number_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def told() -> dict[str, dict[str, object]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--count", "-c", type=int)
    parser.add_argument("--share", type=float)
    parser.add_argument("--config", type=json.loads)
    parser.add_argument("--length", type=number_or_auto)
    parser.add_argument("--name", type=str)
    parser.add_argument("--kind", type=Kind, choices=list(Kind))
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--some", nargs="?")
    parser.add_argument("--on", action="store_true")
    parser.add_argument("--both", action=argparse.BooleanOptionalAction)
    return flags(parser._option_string_actions)


def test_each_flag_says_what_it_takes() -> None:
    rows = told()
    assert rows["--count"] == {"takes": "one", "type": "int", "aliases": ["-c"]}
    assert rows["--share"]["type"] == "float"
    assert rows["--config"]["type"] == "json"
    assert rows["--length"]["type"] == "auto"
    assert rows["--name"]["type"] == "text"
    assert rows["--kind"] == {"takes": "one", "choices": ["one", "two"]}
    assert rows["--sizes"] == {"takes": "many", "type": "int"}
    assert rows["--some"] == {"takes": "optional", "type": "text"}
    assert rows["--on"] == {"takes": "none"}
    assert rows["--both"] == {"takes": "none", "aliases": ["--no-both"]}
    assert "model" not in rows


def test_a_row_stands_on_a_line() -> None:
    text = as_text("1.2.3", {"flags": told()})
    assert json.loads(text) == {"vllm": "1.2.3", "flags": told()}
    assert sum(line.startswith('  "--') for line in text.splitlines()) == len(told())
