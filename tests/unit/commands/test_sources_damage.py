"""Sources whose addresses, records or files are not what they should be: no bug, and no harm."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.commands.source import change, index
from sparkdeploy.recipe.sources.shelf import Sources
from sparkdeploy.settings import load_settings
from tests.fakes.http_server import HttpServer, serving
from tests.unit.commands.sources import commit, recipe, run_git, taken, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.program import Run


@pytest.mark.parametrize(
    "address",
    [
        "http://hidden@127.0.0.1:9/x",
        "https://127.0.0.1:9/x?token=hidden",
        "https://u:hid/den@127.0.0.1:9/x",
        "HTTPS://u:hidden@127.0.0.1:9/x",
        "ssh://user:hidden@127.0.0.1:9/x",
    ],
)
def test_a_token_in_an_address_is_refused_and_not_shown(run: Run, address: str) -> None:
    done = run("recipe", "source", "add", "evil", address)
    assert done.returncode == 2
    assert "hid" not in done.stderr


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


def test_a_number_beyond_all_machines_is_no_trouble(run: Run, origin: Path) -> None:
    commit(origin, {"a.yaml": recipe("a", nodes=10**15)})
    assert run("recipe", "source", "add", "birds", str(origin)).returncode == 0
    assert run("recipe", "search", "bird/").returncode == 0


def test_a_lock_that_is_none_is_the_machines_fault(run: Run, origin: Path) -> None:
    (load_settings().state_dir / "sources/.birds.lock").mkdir(parents=True)
    assert run("recipe", "source", "add", "birds", str(origin)).returncode == 4


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


def test_a_folder_that_is_no_source_is_none(run: Run, origin: Path) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    place = load_settings().state_dir / "sources"
    shutil.copytree(place / "birds", place / "birds (copy)")
    assert len(run.answer("recipe", "source", "ls", "--json")) == 1


def test_what_stands_in_the_way_is_no_bug(run: Run, origin: Path) -> None:
    state = load_settings().state_dir
    write(state, {"sources/birds": "a file"})
    done = run("recipe", "source", "add", "birds", str(origin))
    assert (done.returncode, "sources/birds" in done.stderr) == (4, True)
    assert (state / "sources/birds").read_text() == "a file"
    assert run("recipe", "source", "rm", "birds").returncode == 3
    shutil.rmtree(state / "sources")
    write(state, {"sources": "a file"})
    assert run("recipe", "source", "add", "birds", str(origin)).returncode == 4
    assert run("recipe", "source", "ls").returncode == 0
    assert run("recipe", "source", "update").returncode == 0
    assert run("show", "birds/owl").returncode == 3


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


def test_a_file_that_goes_while_it_is_looked_at_is_no_bug(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "plain", {"owl.yaml": recipe("owl"), "gone.yaml": recipe("gone")})
    lstat = Path.lstat

    def goes(path: Path) -> os.stat_result:
        path.unlink(missing_ok=True) if path.name == "gone.yaml" else None
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", goes)
    assert run("recipe", "source", "add", "plain", str(tmp_path / "plain")).returncode == 0
    assert taken("plain") == {"owl.yaml", ".sparkdeploy-source"}


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


def test_the_first_fatal_line_of_git_is_the_reason(run: Run) -> None:
    done = run("recipe", "source", "add", "birds", "file:///nowhere/at/all")
    assert done.returncode == 4
    assert "does not appear to be a git repository" in done.stderr.splitlines()[1]


def test_a_repository_of_the_other_hash_is_taken(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    run_git(folder, "init", "--quiet", "--object-format=sha256")
    made = commit(folder, {"owl.yaml": recipe("owl")})
    assert run("recipe", "source", "add", "long", str(folder)).returncode == 0
    (row,) = run.answer("recipe", "source", "ls", "--json")
    assert (row["commit"], len(made)) == (made, 64)
    assert run("recipe", "source", "add", "part", str(folder), "--at", made[:8]).returncode == 0


@pytest.mark.outside
def test_a_server_that_only_hands_out_files_will_do(run: Run, origin: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    run_git(origin, "clone", "--quiet", "--bare", ".", str(bare))
    run_git(bare, "update-server-info")
    handler = functools.partial(SilentHandler, directory=str(bare))
    with serving(HttpServer(handler)) as server:
        done = run("recipe", "source", "add", "birds", f"{server.url}/")
    assert done.returncode == 0, done.stderr


class SilentHandler(http.server.SimpleHTTPRequestHandler):
    """Hands out files and says nothing."""

    def log_message(self, *_words: object) -> None: ...
