"""Sources of recipes: taken, changed, searched; and what a hostile one does not get."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.commands.source import files, git
from sparkdeploy.recipe.sources.shelf import Sources, short_names
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.program import Run

OURS = """\
schema: 1
name: {name}
title: {title}
engine: cuda-0.25
model: {{repo: {repo}}}
serve: {{max_model_len: {tokens}}}
cluster: {{min_nodes: {nodes}}}
"""
THEIRS = """\
recipe_version: "1"
name: Their Owl
model: bird/Owl-1B
container: vllm-node
mods: [mods/fix-owl]
defaults: {port: 8000, host: 0.0.0.0}
command: |
  vllm serve bird/Owl-1B --host {host} --port {port} --chat-template owl.jinja
"""


def recipe(name: str, **values: object) -> str:
    told = {"title": name, "repo": "bird/Owl-1B", "tokens": 4096, "nodes": 1, **values}
    return OURS.format(name=name, **told)


def run_git(folder: Path, *words: str, stdin: str = "") -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.autocrlf=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def commit(folder: Path, texts: dict[str, str]) -> str:
    write(folder, texts)
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", "more")
    return run_git(folder, "rev-parse", "HEAD")


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository with two recipes of ours and one of theirs, which has a mod."""
    folder = tmp_path / "origin"
    folder.mkdir()
    run_git(folder, "init", "--quiet", "--initial-branch", "trunk")
    commit(
        folder,
        {
            "recipes/owl.yaml": recipe("owl"),
            "recipes/four/owl.yaml": recipe("owl", title="owl over four", nodes=4),
            "recipes/theirs.yaml": THEIRS,
            "mods/fix-owl/run.sh": "cp owl.jinja $WORKSPACE_DIR/\n",
            "mods/fix-owl/owl.jinja": "{{ messages }}",
            ".github/workflows/test.yaml": "on: push\njobs: {}\n",
            "README.md": "birds",
        },
    )
    return folder


def taken(name: str) -> set[str]:
    folder = Sources.below(load_settings().state_dir).files_of(name)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_source_is_taken_listed_searched_and_forgotten(run: Run, origin: Path) -> None:
    done = run("recipe", "source", "add", "birds", str(origin))
    assert (done.returncode, "3 recipes" in done.stdout) == (0, True), done.stderr
    assert "README.md" not in taken("birds")
    (row,) = run.answer("recipe", "source", "ls", "--json")
    assert (row["name"], row["origin"], len(row["commit"])) == ("birds", str(origin), 40)
    names = [hit["name"] for hit in run.answer("recipe", "search", "owl", "--json")]
    assert names == ["birds/four/owl", "birds/recipes/owl", "birds/theirs"]
    (four,) = run.answer("recipe", "search", "owl", "--nodes", "4", "--json")[:1]
    assert four["name"] == "birds/four/owl"
    assert run("recipe", "source", "rm", "birds").returncode == 0
    assert run.answer("recipe", "source", "ls", "--json") == []


def test_a_search_finds_the_shipped_and_ones_own_as_well(run: Run) -> None:
    own = load_settings().config_dir / "recipes"
    write(own, {"pear.yaml": "schema: 1\nname: pear\nextends: v2\ntitle: [x]\n", "bad.yaml": "["})
    found = {hit["name"]: hit for hit in run.answer("recipe", "search", "122b", "mtp", "--json")}
    assert {"v2", "mtp-1", "pear"} <= set(found)
    assert "baseline" not in found
    assert (found["pear"]["drafts"], found["pear"]["min_nodes"]) == ("mtp 2", 1)
    two = run.answer("recipe", "search", "glm-5.3", "--nodes", "2", "--json")
    assert [hit["name"] for hit in two] == ["glm-5.3-flash"]
    assert run.answer("recipe", "search", "glm-5.3", "--nodes", "1", "--json") == []


def test_a_recipe_of_a_source_is_a_strangers_and_works_without_the_origin(
    run: Run, origin: Path
) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    origin.rename(origin.with_name("gone"))
    refused = run("show", "birds/theirs")
    assert refused.returncode == 3
    assert "mods/fix-owl: a mod runs as root" in refused.stderr
    shown = run.answer("show", "birds/theirs", "--allow-unsafe", "--json")
    assert shown["serve"]["chat_template_of_mod"] == "owl.jinja"
    assert run("show", "birds/four/owl").returncode == 0


@pytest.mark.usefixtures("no_docker")
def test_a_plan_shows_the_mod_of_a_source_whole(run: Run, origin: Path) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    done = run("plan", "birds/theirs", "--allow-unsafe")
    assert "| cp owl.jinja $WORKSPACE_DIR/" in done.stdout
    text = run("plan", "birds/theirs", "--allow-unsafe", "--show", "mods").stdout
    assert "# ---- mod mods/fix-owl: owl.jinja\n{{ messages }}" in text
    args = run("plan", "birds/theirs", "--allow-unsafe", "--show", "args").stdout
    assert "--chat-template /workspace/owl.jinja" in args


def test_an_update_says_what_changes_before_it_takes_it(run: Run, origin: Path) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    (origin / "recipes/four/owl.yaml").unlink()
    commit(
        origin,
        {
            "recipes/owl.yaml": recipe("owl", tokens=2048),
            "recipes/new.yaml": recipe("new"),
            "mods/fix-owl/run.sh": "rm -rf /\n",
        },
    )
    asked = run("recipe", "source", "update")
    assert "nothing was taken" in asked.stdout
    for line in (
        "+ recipes/new.yaml",
        "- recipes/four/owl.yaml",
        "~ mods/fix-owl/run.sh",
        "serve.max_model_len: 4096 -> 2048",
    ):
        assert line in asked.stderr
    assert run.answer("show", "birds/recipes/owl", "--json")["serve"]["max_model_len"] == 4096
    assert run("recipe", "source", "update", "birds", "--yes").returncode == 0
    assert run.answer("show", "birds/owl", "--json")["serve"]["max_model_len"] == 2048
    assert run("recipe", "source", "update", "--yes").stdout == "nothing was taken\n"


def test_a_source_stays_at_the_ref_that_was_named(run: Run, origin: Path) -> None:
    first = run_git(origin, "rev-parse", "HEAD")
    run_git(origin, "tag", "one")
    second = commit(origin, {"recipes/owl.yaml": recipe("owl", tokens=2048)})
    for name, ref in (("tag", "one"), ("whole", first), ("short", first[:10]), ("br", "trunk")):
        assert run("recipe", "source", "add", name, str(origin), "--at", ref).returncode == 0, ref
    found = {
        item["name"]: item["commit"] for item in run.answer("recipe", "source", "ls", "--json")
    }
    assert found == {"tag": first, "whole": first, "short": first, "br": second}
    assert run("recipe", "source", "add", "no", str(origin), "--at", "absent").returncode == 4
    assert (
        run("recipe", "source", "add", "no", str(origin), "--at", "--upload-pack=x").returncode == 2
    )


def test_a_folder_without_git_is_known_by_its_content(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "plain", {"owl.yaml": recipe("owl")})
    run("recipe", "source", "add", "plain", str(tmp_path / "plain"))
    (before,) = run.answer("recipe", "source", "ls", "--json")
    assert run("recipe", "source", "update", "-y").stdout == "nothing was taken\n"
    write(tmp_path / "plain", {"owl.yaml": recipe("owl", tokens=64)})
    assert run("recipe", "source", "update", "-y").returncode == 0
    (after,) = run.answer("recipe", "source", "ls", "--json")
    assert before["commit"] != after["commit"]


def test_a_recipe_named_like_a_shipped_one_is_only_found_by_its_source(
    run: Run, origin: Path
) -> None:
    commit(origin, {"v2.yaml": recipe("v2", repo="evil/Model"), "engines/cuda-0.25.yaml": "x: 1\n"})
    run("recipe", "source", "add", "birds", str(origin))
    assert run.answer("show", "v2", "--json")["model"]["repo"] != "evil/Model"
    assert run.answer("show", "birds/v2", "--json")["model"]["repo"] == "evil/Model"
    assert run.answer("show", "birds/v2", "--json")["engine"] == "cuda-0.25"


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
        ("http://127.0.0.1:9/x.git", 4),
        ("fd::17", 2),
        ("/proc/nowhere", 2),
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
    monkeypatch.setattr(files, "MAX_FILES", 2)
    assert run("recipe", "source", "add", "more", str(origin)).returncode == 3
    assert not (load_settings().state_dir / "sources" / "more").exists()


def test_what_git_may_write_has_a_limit(
    run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = os.urandom(200_000).hex()
    commit(origin, {"noise.bin": noise})
    monkeypatch.setattr(git, "MAX_PACK_BYTES", 50_000)
    done = run("recipe", "source", "add", "birds", str(origin))
    assert done.returncode == 4
    assert "git could not take" in done.stderr
    assert run.answer("recipe", "source", "ls", "--json") == []


@pytest.mark.parametrize("name", ["../up", "Big", "", "a/b", ".hidden"])
def test_a_name_of_a_source_is_no_path(run: Run, origin: Path, name: str) -> None:
    assert run("recipe", "source", "add", name, str(origin)).returncode == 2


def test_a_damaged_record_is_named_with_its_way_out(run: Run, origin: Path) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    folder = Sources.below(load_settings().state_dir).files_of("birds")
    (folder / ".sparkdeploy-source").write_text('{"record": {"name": "../../etc"}}')
    done = run("show", "birds/owl")
    assert done.returncode == 3
    assert "recipe source rm birds" in done.stderr


def test_a_name_is_the_shortest_end_of_a_path_that_is_unique() -> None:
    paths = ["a/x.yaml", "b/x.yaml", "b/y.yml", "c/b/x.yaml", "z.yaml"]
    assert list(short_names(paths)) == ["a/x", "b/x", "y", "c/b/x", "z"]
