"""What a hostile or a damaged source of recipes does not get."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.authoring.source import files, git
from sparkdeploy.recipe.sources import Sources
from sparkdeploy.settings import load_settings
from tests.unit.authoring.sources import commit, recipe, run_git, taken, write
from tests.unit.program import Run


def hostile_tree(folder: Path) -> str:
    """Commit names that no file system would give: `..`, .git, links, another repository."""
    blob = run_git(folder, "hash-object", "-w", "--stdin", stdin=recipe("out"))
    link = run_git(folder, "hash-object", "-w", "--stdin", stdin="/etc/passwd")
    good = run_git(folder, "mktree", stdin=f"100644 blob {blob}\tgood.yaml\n")
    rows = [
        f"120000 blob {link}\tlink.yaml",
        f"160000 commit {'1' * 40}\tmodule.yaml",
        f"100644 blob {blob}\tcontrol\x1b[31m.yaml",
        f"100644 blob {blob}\tback\\slash.yaml",
        f"100644 blob {blob}\t.sparkdeploy-source.yaml",
        f"100644 blob {blob}\t~home.yaml",
        *(f"100644 blob {blob}\t{name}.yaml" for name in ("$(id)", "-x", "`id`", "a;b")),
        f"040000 tree {good}\tgood",
    ]
    tree = run_git(folder, "mktree", "--missing", "-z", stdin="\0".join(rows) + "\0")
    made = run_git(folder, "commit-tree", tree, "-m", "hostile")
    run_git(folder, "update-ref", "refs/heads/hostile", made)
    return made


def test_a_hostile_source_gets_no_file_but_recipes(run: Run, origin: Path) -> None:
    hostile_tree(origin)
    done = run("recipe", "source", "add", "evil", str(origin), "--at", "hostile")
    assert done.returncode == 0, done.stderr
    assert taken("evil") == {"good/good.yaml", ".sparkdeploy-source"}
    assert "a link" in done.stderr
    assert "submodule" in done.stderr
    assert "a name that leads elsewhere or cannot be shown" in done.stderr
    assert "4 x a name with signs that a shell may obey" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["../up.yaml", "a/../../up.yaml", ".git/hooks/post-checkout"])
def test_a_path_that_leads_elsewhere_is_left_out(tmp_path: Path, name: str) -> None:
    content = recipe("up")
    blob = git.Blob(name, "100755", "0" * 40, len(content))
    script = git.Blob("mods/x/run.sh", "100755", "1" * 40, 3)

    class Doctored(git.Repository):
        def blobs(self, _commit: str) -> object:  # type: ignore[override]
            return iter((blob, script))

        def contents(self, blobs: object) -> object:  # type: ignore[override]
            return ((item, content.encode()) for item in blobs)  # type: ignore[attr-defined]

    inside = tmp_path / "inside"
    found = files.take_commit(Doctored(tmp_path), "0" * 40, inside)
    assert found.files == ["mods/x/run.sh"]
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


def test_hooks_and_filters_of_a_source_never_run(run: Run, origin: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    hook = f"#!/bin/sh\ntouch {told}\n"
    write(origin, {".git/hooks/post-checkout": hook, ".git/hooks/reference-transaction": hook})
    for name in ("post-checkout", "reference-transaction"):
        (origin / ".git/hooks" / name).chmod(0o755)
    commit(origin, {".gitattributes": "*.yaml filter=evil\n"})
    told.unlink(missing_ok=True)
    run_git(origin, "config", "filter.evil.smudge", f"touch {told}")
    assert run("recipe", "source", "add", "birds", str(origin)).returncode == 0
    assert not told.exists()


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("ext::sh -c 'touch /tmp/pwned'", 2),
        ("--upload-pack=touch", 2),
        ("https://user:hidden@127.0.0.1:9/x", 2),
        ("http://hidden@127.0.0.1:9/x", 2),
        ("https://127.0.0.1:9/x?token=hidden", 2),
        ("https://u:hid/hidden@127.0.0.1:9/x", 2),
        ("HTTPS://u:hidden@127.0.0.1:9/x", 2),
        ("ssh://user:hidden@127.0.0.1:9/x", 2),
        ("http://127.0.0.1:9/x.git", 4),
        ("fd::17", 2),
        ("/proc/nowhere", 2),
        ("file:///proc/no@where", 4),
    ],
)
def test_an_address_that_is_none_or_has_a_password_is_refused(
    run: Run, address: str, code: int
) -> None:
    done = run("recipe", "source", "add", "evil", "--", address)
    assert done.returncode == code
    assert "hidden" not in done.stderr
    assert run.answer("recipe", "source", "ls", "--json") == []


def test_large_files_and_too_many_are_refused(
    run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(origin, {"recipes/huge.yaml": "#" * 300_000})
    done = run("recipe", "source", "add", "birds", str(origin))
    assert "1 x too large" in done.stderr
    assert "recipes/huge.yaml" not in taken("birds")
    for limit in ("MAX_FILES", "MAX_BYTES", "MAX_RECIPES"):
        with monkeypatch.context() as patched:
            patched.setattr(files, limit, 2)
            assert run("recipe", "source", "add", "more", str(origin)).returncode == 3
    assert not (load_settings().state_dir / "sources" / "more").exists()


@pytest.mark.parametrize("name", ["../up", "Big", "", "a/b", ".hidden"])
def test_a_name_of_a_source_is_no_path(run: Run, origin: Path, name: str) -> None:
    assert run("recipe", "source", "add", name, str(origin)).returncode == 2


def tree_bomb(folder: Path, levels: int) -> None:
    """Commit trees of ten names for one and the same tree, some levels of it."""
    blob = run_git(folder, "hash-object", "-w", "--stdin", stdin="x")
    tree = run_git(folder, "mktree", stdin=f"100644 blob {blob}\tx.yaml\n")
    for _ in range(levels):
        rows = "".join(f"040000 tree {tree}\t{name}\n" for name in range(10))
        tree = run_git(folder, "mktree", stdin=rows)
    made = run_git(folder, "commit-tree", tree, "-m", "bomb")
    run_git(folder, "update-ref", "refs/heads/bomb", made)


@pytest.mark.outside
@pytest.mark.parametrize(("entries", "names_bytes"), [(2_000, 64 << 20), (200_000, 100_000)])
def test_trees_that_hold_one_another_are_not_listed_to_their_end(
    run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch, entries: int, names_bytes: int
) -> None:
    monkeypatch.setattr(git, "MAX_ENTRIES", entries)
    monkeypatch.setattr(git, "MAX_LIST_BYTES", names_bytes)
    tree_bomb(origin, 12)
    done = run("recipe", "source", "add", "bomb", str(origin), "--at", "bomb")
    assert done.returncode == 3
    assert f"lists more than {entries} files" in done.stderr
    assert not (load_settings().state_dir / "sources/bomb").exists()


@pytest.mark.parametrize(
    "parent",
    ["{out}/secret.yaml", "{out}/secret", "../../../../secret", "./secret.yaml", "/none/is/here"],
)
def test_a_recipe_extends_no_file_outside_its_source(
    run: Run, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    secret = load_settings().state_dir / "secret.yaml"
    write(secret.parent, {"secret.yaml": "token: hidden\n"})
    named = parent.format(out=secret.parent)
    commit(origin, {"recipes/bad.yaml": f"schema: 1\nname: bad\ntitle: x\nextends: {named}\n"})
    run("recipe", "source", "add", "birds", str(origin))
    monkeypatch.chdir(secret.parent)
    done = run("show", "birds/bad", "--allow-unsafe")
    assert done.returncode == 3
    assert "hidden" not in done.stdout + done.stderr
    assert "token" not in done.stdout + done.stderr


def test_a_user_of_ssh_is_no_secret(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", "false")
    for address in ("ssh://git@127.0.0.1/x", "git+ssh://git@127.0.0.1/x", "git@127.0.0.1:x"):
        assert run("recipe", "source", "add", "birds", address).returncode == 4


def test_a_repository_that_is_no_source_is_not_fetched_to_its_end(
    run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "MAX_PACK_BYTES", 1 << 20)
    commit(origin, {"weights.txt": random.Random(1).randbytes(2 << 20).hex()})
    done = run("recipe", "source", "add", "birds", str(origin))
    assert done.returncode == 4
    assert "it is larger than 1 MiB" in done.stderr


def edit(name: str, change: Callable[[Any], object]) -> None:
    path = Sources.below(load_settings().state_dir).files_of(name) / ".sparkdeploy-source"
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


def test_a_stored_token_is_masked(run: Run, birds: Path) -> None:
    address = "https://u:hid/den@host/x?token=hidden"
    edit("birds", lambda told: told["record"].update(origin=address))
    for words in (("ls",), ("ls", "--json")):
        assert "hid" not in run("recipe", "source", *words).stdout
    assert run("recipe", "source", "update").returncode == 4


def test_an_edited_ref_is_no_option(run: Run, birds: Path, tmp_path: Path) -> None:
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
    run: Run, birds: Path, change: Callable[[Any], object]
) -> None:
    run("recipe", "source", "add", "bad", str(birds))
    edit("bad", change)
    for words in (("recipe", "source", "ls"), ("list", "owl")):
        done = run(*words)
        assert done.returncode == 0
        assert "birds" in done.stdout
        assert "source bad is left out" in done.stderr
    assert "v2" in run("list", "122b").stdout
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


def test_git_asks_nobody_for_a_password() -> None:
    done = git._run("-c", "alias.told=!env", "told")
    allowed = f"GIT_ALLOW_PROTOCOL={git.PROTOCOLS}"
    assert {"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", allowed} <= {*done.stdout.splitlines()}


def test_an_index_of_another_version_of_the_program_is_made_anew(run: Run, birds: Path) -> None:
    edit("birds", lambda told: told.update(version="0.0.1") or told["rows"][0].update(title="x"))
    assert "up to date" in run("recipe", "source", "update").stdout
    taken_anew = Sources.below(load_settings().state_dir).get("birds")
    assert "x" not in {row.title for row in taken_anew.rows}
