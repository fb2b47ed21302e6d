"""Sources whose addresses, records or files are not what they should be: no bug, and no harm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.recipe.sources import Sources
from sparkdeploy.settings import load_settings
from tests.unit.authoring.sources import write

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


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["rows"][0].update(file="../../x.yaml"),
        lambda told: told["rows"][0].update(file="/etc/x.yaml"),
        lambda told: told["rows"][0].update(name="another"),
        lambda told: told["rows"][0].update(name=""),
        lambda told: told["rows"][0].update(model="a\nb"),
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


def test_git_is_led_nowhere_by_variables_and_takes_a_bare_repository(
    run: Run, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"config": "[safe]\n\tbareRepository = explicit\n"})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    assert run("recipe", "source", "add", "birds", str(origin)).returncode == 0
    assert not (tmp_path / "elsewhere").exists()
