"""`recipe import`: printed, written, reported, and never written where nobody asks again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkdeploy import yaml_text
from sparkdeploy.recipe.load import load_recipe
from tests.unit.program import Run
from tests.unit.recipe.foreign.samples import CASES, SHELF, V1, V2, WITH_WORDS


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs" / "below"
    folder.mkdir(parents=True)
    (folder / "parrot.yaml").write_text(V1)
    (folder / "crow.yml").write_text(V2)
    (folder / "owl.yaml").write_text(WITH_WORDS)
    (folder / "sglang.yaml").write_text("model: a/b\ncontainer: x/y\nruntime: sglang\n")
    (folder / "other.yaml").write_text("services: {}\n")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_file_is_printed_as_ours(run: Run, theirs: Path, tmp_path: Path) -> None:
    done = run("recipe", "import", str(theirs / "parrot.yaml"))
    assert done.returncode == 0
    assert "translated (" in done.stderr
    assert "left out (" in done.stderr
    ours = tmp_path / "ours.yaml"
    ours.write_text(done.stdout)
    again = load_recipe(SHELF, str(ours), ["allow_unsafe=true"]).recipe
    read = load_recipe(SHELF, str(theirs / "parrot.yaml"), ["allow_unsafe=true"]).recipe
    assert again == read
    line = next(at for at, text in enumerate(V1.splitlines(), 1) if "--max-model-len" in text)
    assert f"# line {line}: --max-model-len 64K" in done.stdout
    assert "#   line 2: recipe_version: the version of its own format" in done.stdout


def test_a_name_of_a_file_is_that_file(run: Run, theirs: Path, tmp_path: Path) -> None:
    target = tmp_path / "new one" / "mine.yaml"
    done = run("recipe", "import", str(theirs / "parrot.yaml"), "-o", str(target))
    assert done.returncode == 0
    assert "name: parrot" in target.read_text()
    whole = run("recipe", "import", str(theirs), "-o", str(target))
    assert whole.returncode == 2
    assert f"-o '{target.with_suffix('')}'" in whole.stderr
    below = run("recipe", "import", str(theirs), "-o", str(target / "below"))
    assert (below.returncode, "cannot be written to" in below.stderr) == (3, True)


def test_a_folder_is_written_file_by_file(run: Run, theirs: Path, tmp_path: Path) -> None:
    target = tmp_path / "ours"
    done = run("recipe", "import", str(theirs.parent), "-o", str(target))
    assert done.returncode == 1
    assert "2 of 5 files were refused" in done.stderr
    assert names(target / "below") == ["crow.yaml", "owl.yaml", "parrot-35b-fp8.yaml"]
    assert "3 of 5 files translated" in done.stderr
    assert "needs your consent (" in done.stdout
    assert f"  written to {target / 'below' / 'owl.yaml'}" in done.stdout
    assert "the recipe is for SGLang" in done.stdout
    assert "is no recipe" in done.stdout
    (theirs / "sglang.yaml").unlink()
    (theirs / "other.yaml").unlink()
    again = run("recipe", "import", str(theirs.parent), "-o", str(target))
    assert again.returncode == 0
    (target / "below" / "crow.yaml").unlink()
    (target / "below" / "owl.yaml").write_text("mine")
    refused = run("recipe", "import", str(theirs.parent), "-o", str(target))
    assert refused.returncode == 3
    assert "owl.yaml exists with another content, and stays" in refused.stderr
    assert names(target / "below") == ["owl.yaml", "parrot-35b-fp8.yaml"]
    assert (target / "below" / "owl.yaml").read_text() == "mine"


def test_recipes_of_one_name_get_a_file_each(run: Run, tmp_path: Path) -> None:
    for name in ("a", "owl", "z"):
        (tmp_path / f"{name}.yaml").write_text("name: owl\nmodel: a/b\ncontainer: vllm-node\n")
    assert run("recipe", "import", str(tmp_path), "-o", str(tmp_path / "ours")).returncode == 0
    assert names(tmp_path / "ours") == ["owl-2.yaml", "owl.yaml", "z.yaml"]


def test_a_trusted_folder_takes_nothing_without_consent(
    run: Run, theirs: Path, tmp_path: Path
) -> None:
    trusted = tmp_path / "config" / "recipes"
    wrong = "model: a/b\ncontainer: vllm-node\ncommand: vllm serve a/b --port nothing\n"
    (theirs / "wrong.yaml").write_text(wrong)
    for name in ("owl.yaml", "wrong.yaml"):
        refused = run("recipe", "import", str(theirs / name), "-o", str(trusted))
        assert refused.returncode == 3
        assert "recipes of that folder are trusted" in refused.stderr
        assert not trusted.exists()
    said = run("recipe", "import", str(theirs / "wrong.yaml")).stderr
    assert "mistakes (1), `plan` refuses it:" in said
    allowed = ("-o", str(trusted), "--allow-unsafe")
    assert run("recipe", "import", str(theirs / "owl.yaml"), *allowed).returncode == 0
    assert (trusted / "owl.yaml").is_file()
    assert "allow_unsafe" not in (trusted / "owl.yaml").read_text()


@pytest.mark.parametrize(("name", "code"), [("absent", 2), ("sglang.yaml", 3), ("other.yaml", 3)])
def test_what_cannot_be_imported_has_an_exit_code(
    run: Run, theirs: Path, name: str, code: int
) -> None:
    done = run("recipe", "import", str(theirs / name))
    assert done.returncode == code
    assert done.stderr.count("error:") == 1


@pytest.mark.usefixtures("no_docker")
def test_a_plan_says_what_became_of_theirs(run: Run, theirs: Path) -> None:
    done = run("plan", str(theirs / "owl.yaml"), "--allow-unsafe", "--set", "model.path=null")
    assert "from owl.yaml (sparkrun v2): 12 values translated, 4 left out\n      li" in done.stdout
    assert "mod pip install owl-kernels: its run.sh runs as root, without a network:" in done.stdout
    assert "        | pip install owl-kernels" in done.stdout
    words = ("plan", str(theirs / "parrot.yaml"), "--allow-unsafe", "--json")
    told = json.loads(run(*words).stdout)["import"]
    assert told["format"] == "eugr v1"
    assert {"line": 3, "theirs": "name: Parrot 35B (FP8)", "ours": "name"} in told["translated"]
    unused = {"line": 18, "theirs": "unused: 1", "why": "the command has no place for it"}
    assert unused in told["left_out"]


@pytest.mark.parametrize(("name", "text"), CASES["files"])
def test_nothing_of_theirs_leaves_a_comment(run: Run, tmp_path: Path, name: str, text: str) -> None:
    folder, target = tmp_path / "theirs", tmp_path / "ours"
    folder.mkdir()
    (folder / name).write_text(text)
    run("recipe", "import", str(folder), "-o", str(target))
    for path in target.rglob("*.yaml"):
        content = yaml_text.load_file(path)
        assert "mods" not in content
        assert "trust_remote_code" not in content.get("serve", {})


@pytest.mark.parametrize("way", ["parent", "link"])
def test_nothing_reaches_a_trusted_folder_by_its_parent_or_a_link(
    run: Run, theirs: Path, tmp_path: Path, way: str
) -> None:
    trusted = tmp_path / "config" / "recipes"
    trusted.mkdir(parents=True)
    source, target = theirs.parent, tmp_path / "elsewhere"
    if way == "parent":
        theirs.rename(theirs.parent / "recipes")
        target = trusted.parent
    else:
        target.mkdir()
        (target / "below").symlink_to(trusted)
    done = run("recipe", "import", str(source), "-o", str(target))
    assert done.returncode == 3
    assert "recipes of that folder are trusted" in done.stderr
    assert list(trusted.iterdir()) == []


def test_a_mod_that_is_not_here_is_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(
        'recipe_version: "1"\nname: theirs\nmodel: Qwen/Qwen3-8B\ncontainer: vllm-node\n'
        "mods: [mods/nothing-here]\ncommand: vllm serve Qwen/Qwen3-8B\n"
    )
    done = run("recipe", "import", str(file))
    assert done.returncode == 0
    assert "mods that are not here (1)" in done.stderr
    assert "mods/nothing-here: put its folder beside the recipe" in done.stderr
    (told,) = run.answer("recipe", "import", str(file), "--json")["files"]
    assert (told["missing_mods"], told["mistakes"]) == (["mods/nothing-here"], [])
    assert (len(told["needs_consent"]), told["written"]) == (1, None)
