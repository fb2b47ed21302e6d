"""Sources of recipes: taken, changed, searched and forgotten."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.pull import Pulled, WantedRepository
from sparkdeploy.recipe.load import library, load_recipe
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep import checkpoints
from tests.unit.authoring.sources import commit, recipe, run_git, taken, write
from tests.unit.program import Run


def test_a_source_is_taken_listed_searched_and_forgotten(
    run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(origin / "recipes")
    done = run("recipe", "source", "add", "birds", "..")
    assert (done.returncode, "3 recipes" in done.stdout) == (0, True), done.stderr
    assert "README.md" not in taken("birds")
    assert "recipes/talk.jinja" in taken("birds")
    assert run("recipe", "source", "add", "birds", str(origin)).returncode == 2
    (row,) = run.answer("recipe", "source", "ls", "--json")
    assert (row["name"], row["origin"], len(row["commit"])) == ("birds", str(origin), 40)
    names = [hit["name"] for hit in run.answer("list", "owl", "--json")]
    assert names == ["birds/four/owl", "birds/recipes/owl", "birds/theirs"]
    (four,) = run.answer("list", "owl", "--nodes", "4", "--json")[:1]
    assert four["name"] == "birds/four/owl"
    assert run("recipe", "source", "rm", "birds").returncode == 0
    assert run.answer("recipe", "source", "ls", "--json") == []


def test_a_recipe_of_a_source_is_a_strangers_and_works_without_the_origin(
    run: Run, birds: Path
) -> None:
    birds.rename(birds.with_name("gone"))
    refused = run("show", "birds/theirs")
    assert refused.returncode == 3
    assert "mods/fix-owl: a mod runs as root" in refused.stderr
    shown = run.answer("show", "birds/theirs", "--allow-unsafe", "--json")
    assert shown["serve"]["chat_template_of_mod"] == "owl.jinja"
    assert run("show", "birds/four/owl").returncode == 0


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
    for ref in ("--upload-pack=x", "a..b", "a.lock", "a/"):
        assert run("recipe", "source", "add", "no", str(origin), "--at", ref).returncode == 2


def test_a_folder_without_git_is_no_source(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "my owls", {"owl.yaml": recipe("owl")})
    monkeypatch.chdir(tmp_path)
    for typed, said in (("./my owls", "git init"), ("my owls", "write './my owls' for the folder")):
        done = run("recipe", "source", "add", "plain", typed)
        assert (done.returncode, said in done.stderr) == (2, True)


def test_what_is_found_says_machines_drafts_image_and_consent(run: Run, origin: Path) -> None:
    texts = {
        "jay1.yaml": recipe("jay1", nodes="1, max_nodes: 1"),
        "jay2.yaml": recipe("jay2", nodes="2, max_nodes: 4"),
        "jay3.yaml": recipe("jay3", nodes=3, tokens="8, speculative: {method: ngram, tokens: 2}"),
        "jay4.yaml": recipe("jay4").replace("cuda-0.25", "image\nimage: lab/jay:1"),
        "jay5.yaml": recipe("jay5", tokens="many"),
    }
    commit(origin, texts)
    run("recipe", "source", "add", "birds", str(origin))

    *lines, wrong = run("list", "jay").stdout.splitlines()
    assert lines == [
        "  birds/jay1  bird/Owl-1B, 1 machine, cuda-0.25",
        "  birds/jay2  bird/Owl-1B, 2 to 4 machines, cuda-0.25",
        "  birds/jay3  bird/Owl-1B, ngram 2, 3 or more machines, cuda-0.25",
        "! birds/jay4  bird/Owl-1B, lab/jay:1",
    ]
    assert wrong.startswith("  birds/jay5  jay5.yaml:6: serve.max_model_len: 'many' is wrong;")
    for_four = run("list", "jay", "--nodes", "4").stdout
    assert ("jay1" in for_four, "Owl-1B, 1 or more machines, lab" in for_four) == (False, True)
    fitting = run("list", "jay", "--fits", "spark").stdout
    assert ("jay1  unknown  bird" in fitting, "jay5" in fitting) == (True, False)


def test_a_recipe_named_like_a_shipped_one_is_only_found_by_its_source(
    run: Run, origin: Path
) -> None:
    commit(origin, {"v2.yaml": recipe("v2", repo="evil/Model"), "engines/cuda-0.25.yaml": "x: 1\n"})
    run("recipe", "source", "add", "birds", str(origin))
    assert run.answer("show", "v2", "--json")["model"]["repo"] != "evil/Model"
    assert run.answer("show", "birds/v2", "--json")["model"]["repo"] == "evil/Model"
    assert run.answer("show", "birds/v2", "--json")["engine"] == "cuda-0.25"


def test_what_is_exported_names_the_recipe_wherever_it_is_started(
    run: Run, birds: Path, tmp_path: Path
) -> None:
    unit = run("export", "systemd", "birds/recipes/owl").stdout
    (started,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(started.removeprefix("ExecStart="))
    named = words[words.index("up") + 1]
    assert load_recipe(library(load_settings()), named).recipe.model.repo == "bird/Owl-1B"


def test_what_a_recipe_of_a_source_needs_is_pulled(
    run: Run, birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def announce(_hub: object, _lock: object, item: WantedRepository, **_: object) -> object:
        asked.append(item.repo)
        return item

    monkeypatch.setattr(checkpoints, "announce", announce)
    monkeypatch.setattr(checkpoints, "fetch", lambda *_: Pulled("", "", "", Path(), 0, 0))
    run("checkpoint", "pull", "birds/recipes/owl")
    assert run("checkpoint", "pull", "birds/theirs").returncode == 3
    run("checkpoint", "pull", "birds/theirs", "--allow-unsafe")
    run("checkpoint", "pull", "birds/Model-1B")
    assert asked == ["bird/Owl-1B", "bird/Owl-1B", "birds/Model-1B"]
