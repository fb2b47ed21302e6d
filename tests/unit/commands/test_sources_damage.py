"""Sources whose addresses, records or files are not what they should be: no bug, and no harm."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.commands.source import change, index
from sparkdeploy.recipe.sources.shelf import Sources
from sparkdeploy.settings import load_settings
from tests.unit.commands.sources import commit, recipe, run_git, taken, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.program import Run


def test_a_user_of_ssh_is_no_secret(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", "false")
    for address in ("ssh://git@127.0.0.1/x", "git@127.0.0.1:x"):
        assert run("recipe", "source", "add", "birds", address).returncode == 4


def edit(name: str, change: Callable[[Any], object]) -> None:
    path = Sources.below(load_settings().state_dir).files_of(name) / ".sparkdeploy-source"
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


def test_a_stored_token_is_masked(run: Run, origin: Path) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    edit(
        "birds", lambda told: told["record"].update(origin="https://u:hid/den@host/x?token=hidden")
    )
    for words in (("ls",), ("ls", "--json")):
        assert "hid" not in run("recipe", "source", *words).stdout
    assert run("recipe", "source", "update").returncode == 4


def test_an_edited_ref_is_no_option(run: Run, origin: Path, tmp_path: Path) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    edit("birds", lambda told: told["record"].update(ref=f"--upload-pack=touch {tmp_path}/ran;"))
    assert run("recipe", "source", "update").returncode == 4
    assert not (tmp_path / "ran").exists()


def test_an_index_that_could_not_be_read_again_is_not_kept(
    run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "MAX_BYTES", 500)
    done = run("recipe", "source", "add", "birds", str(origin))
    assert (done.returncode, "is larger than" in done.stderr) == (3, True)
    monkeypatch.setattr(index, "MAX_RECIPES", 2)
    done = run("recipe", "source", "add", "birds", str(origin))
    assert (done.returncode, "more than 2 recipes" in done.stderr) == (3, True)
    assert run.answer("recipe", "source", "ls", "--json") == []


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["rows"][0].update(file="../../x.yaml"),
        lambda told: told["rows"][0].update(file="/etc/x.yaml"),
        lambda told: told["rows"][0].update(model="a\nb"),
        lambda told: told["rows"][0].update(name="other"),
        lambda told: told["rows"][0].update(min_nodes="1"),
        lambda told: told["rows"][0].update(more=1),
        lambda told: told["rows"].append([]),
        lambda told: told["record"].update(name="bees"),
        lambda told: told["record"].update(origin="a\nb"),
        lambda told: told["record"].update(commit="HEAD"),
        lambda told: told.update(version=None),
        lambda told: told.pop("rows"),
    ],
)
def test_one_damaged_source_disables_no_other(
    run: Run, origin: Path, change: Callable[[Any], object]
) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    run("recipe", "source", "add", "bad", str(origin))
    edit("bad", change)
    for words in (("source", "ls"), ("search", "owl")):
        done = run("recipe", *words)
        assert done.returncode == 0
        assert "birds" in done.stdout
        assert "source bad is left out" in done.stderr
    assert "v2" in run("recipe", "search", "122b").stdout
    assert run("show", "bad/owl").returncode == 3
    assert run("recipe", "source", "rm", "bad").returncode == 0


def test_names_that_are_no_text_are_no_bug(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"no\xfftext")
    write(folder, {"owl.yaml": recipe("owl")})
    assert run("recipe", "source", "add", "birds", str(folder)).returncode == 2
    write(tmp_path / "plain", {"owl.yaml": recipe("owl")})
    for name in (b"a\xfe.yaml", b"a\xff.yaml"):
        (tmp_path / "plain" / os.fsdecode(name)).write_text(recipe("x"))
    done = run("recipe", "source", "add", "plain", str(tmp_path / "plain"))
    assert "2 x a name that leads elsewhere or cannot be shown" in done.stderr
    run_git(tmp_path / "plain", "init", "--quiet")
    commit(tmp_path / "plain", {})
    done = run("recipe", "source", "add", "git", str(tmp_path / "plain"))
    assert "2 x a name that leads elsewhere or cannot be shown" in done.stderr
    assert taken("git") == {"owl.yaml", ".sparkdeploy-source"}


def test_git_is_led_nowhere_by_variables_and_takes_a_bare_repository(
    run: Run, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"config": "[safe]\n\tbareRepository = explicit\n"})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    assert run("recipe", "source", "add", "birds", str(origin)).returncode == 0
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("address", ["", "origin", "nowhere"])
def test_a_word_is_no_address(
    run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(origin.parent)
    done = run("recipe", "source", "add", "birds", address)
    assert done.returncode == 2
    assert ("write ./origin for the folder" in done.stderr) == (address == "origin")
