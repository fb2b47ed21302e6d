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


def test_a_source_is_taken_listed_searched_and_forgotten(run: Run, origin: Path) -> None:
    done = run("recipe", "source", "add", "birds", str(origin))
    assert (done.returncode, "3 recipes" in done.stdout) == (0, True), done.stderr
    assert "README.md" not in taken("birds")
    (row,) = run.answer("recipe", "source", "ls", "--json")
    assert (row["name"], row["origin"], len(row["commit"])) == ("birds", str(origin), 40)
    names = [hit["name"] for hit in run.answer("list", "owl", "--json")]
    assert names == ["birds/four/owl", "birds/recipes/owl", "birds/theirs"]
    (four,) = run.answer("list", "owl", "--nodes", "4", "--json")[:1]
    assert four["name"] == "birds/four/owl"
    assert run("recipe", "source", "rm", "birds").returncode == 0
    assert run.answer("recipe", "source", "ls", "--json") == []


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
    assert (asked.returncode, "birds stays at" in asked.stdout) == (9, True)
    for line in (
        *("create mode 100644 recipes/new.yaml", "delete mode 100644 recipes/four/owl.yaml"),
        *("mods/fix-owl/run.sh", "recipes/owl.yaml"),
    ):
        assert line in asked.stderr
    assert run.answer("show", "birds/recipes/owl", "--json")["serve"]["max_model_len"] == 4096
    assert run("recipe", "source", "update", "birds", "--yes").returncode == 0
    assert run.answer("show", "birds/owl", "--json")["serve"]["max_model_len"] == 2048
    assert "birds is up to date (" in run("recipe", "source", "update", "--yes").stdout


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


def test_a_folder_without_git_is_no_source(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "plain", {"owl.yaml": recipe("owl")})
    done = run("recipe", "source", "add", "plain", str(tmp_path / "plain"))
    assert (done.returncode, "git init" in done.stderr) == (2, True)


def test_a_recipe_named_like_a_shipped_one_is_only_found_by_its_source(
    run: Run, origin: Path
) -> None:
    commit(origin, {"v2.yaml": recipe("v2", repo="evil/Model"), "engines/cuda-0.25.yaml": "x: 1\n"})
    run("recipe", "source", "add", "birds", str(origin))
    assert run.answer("show", "v2", "--json")["model"]["repo"] != "evil/Model"
    assert run.answer("show", "birds/v2", "--json")["model"]["repo"] == "evil/Model"
    assert run.answer("show", "birds/v2", "--json")["engine"] == "cuda-0.25"


def test_what_is_exported_names_the_recipe_wherever_it_is_started(
    run: Run, origin: Path, tmp_path: Path
) -> None:
    run("recipe", "source", "add", "birds", str(origin))
    unit = run("export", "systemd", "birds/recipes/owl").stdout
    (started,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(started.removeprefix("ExecStart="))
    named = words[words.index("up") + 1]
    assert load_recipe(library(load_settings()), named).recipe.model.repo == "bird/Owl-1B"


def test_what_a_recipe_of_a_source_needs_is_pulled(
    run: Run, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def announce(_hub: object, _lock: object, item: WantedRepository, **_: object) -> object:
        asked.append(item.repo)
        return item

    monkeypatch.setattr(checkpoints, "announce", announce)
    monkeypatch.setattr(checkpoints, "fetch", lambda *_: Pulled("", "", "", Path(), 0, 0))
    run("recipe", "source", "add", "birds", str(origin))
    run("checkpoint", "pull", "birds/recipes/owl")
    assert run("checkpoint", "pull", "birds/theirs").returncode == 3
    run("checkpoint", "pull", "birds/theirs", "--allow-unsafe")
    run("checkpoint", "pull", "birds/Model-1B")
    assert asked == ["bird/Owl-1B", "bird/Owl-1B", "birds/Model-1B"]
